"""Every actor that folds events: its snapshot at any place of a log, and the events after it, lead to what all events
lead to."""

from __future__ import annotations

import asyncio
import random
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import msgspec
import pytest
from support.simulation import Simulation
from support.toy_parts import ToyTrainer
from test_simulation import variant

from areal_actors.core.snapshots import Snapshot
from areal_actors.core.values import WeightsLocation
from areal_actors.gateway.gateway_state import GatewayState
from areal_actors.gateway.session_manager import SessionManager
from areal_actors.gateway.sessions.registry import RegistryState
from areal_actors.messages import (
    KINDS,
    CheckpointCommitted,
    CheckpointStaged,
    EvaluationCompleted,
    ExamplesDropped,
    RunResumed,
    RunStarted,
    RunStopping,
    StepCompleted,
    WeightsPublished,
)
from areal_actors.metrics.episode_log import EpisodeLog
from areal_actors.metrics.metrics_file import Metrics
from areal_actors.runtime.actor import Actor
from areal_actors.runtime.fold_keeper import FoldKeeper
from areal_actors.supervised.example_source import ExampleSource
from areal_actors.training.checkpointer import CheckpointConfig, Checkpointer
from areal_actors.training.trainer import Trainer
from areal_bus.base import Envelope, Stamp
from areal_bus.memory import MemoryBus

BY_SUBJECT = {kind.subject: kind for kind in KINDS}
SEEDS = range(8)
CUTS = 6
"""Places of each log from which every actor is restored."""


class LogContext:
    """The handling of an event of a log."""

    def __init__(self, envelope: Envelope, *, replayed: bool):
        self.cause, self.sequence, self.replayed = envelope.id, envelope.sequence, replayed
        self.now = self.sent = envelope.time
        self.random = random.Random(envelope.id)

    def waiting(self, name, seconds):
        return nullcontext()


async def fold(actor: Actor, log, *, replayed=True):
    """Give these events to an actor; returns the emitted messages."""
    emitted = []
    for envelope in log:
        if (kind := BY_SUBJECT[envelope.subject]) in actor.handlers:
            emitted += [
                message async for message in actor.receive(envelope.open(kind), LogContext(envelope, replayed=replayed))
            ]
    return emitted


def copied(actor: Actor):
    """The snapshot as it comes out of a file."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(actor.snapshot()), type=actor.state_type)


def restored(make, state) -> Actor:
    actor = make()
    actor.restore(state)
    return actor


class Recorded:
    """The snapshots that living actors would have kept, had there been a checkpoint at every event."""

    def __init__(self):
        self.at = {}

    def recorder(self):
        recorded = self

        class Recorder(FoldKeeper):
            def __init__(self, fold, bus, store, name):
                super().__init__(fold, bus, None, name)
                self.of, self.name = fold, name

            def on_folded(self, delivery, tasks, now):
                if self.of.state_type is not None and delivery.envelope.sequence:  # telemetry has no place in the log
                    taken = Snapshot.of(self.name, self.of, delivery.envelope.sequence, delivery.envelope.id)
                    recorded.at.setdefault(self.name, {})[delivery.envelope.sequence] = taken.state

        return Recorder


@cache
def run_recorded(seed):
    """A run of the whole system, with deaths; its log, what its actors knew when, and how to make them."""
    recorded = Recorded()
    simulation = variant(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("areal_actors.runtime.runtime.FoldKeeper", recorded.recorder())
        outcome = simulation.run()
    bus = MemoryBus()
    make = simulation.actors(bus, ToyTrainer(), outcome.agent)
    return outcome.log, recorded.at, {name: make[name] for name in recorded.at}


def comparable(state):
    """State that must be equal at any moment: a living gateway knows of ends and keys before the log has them."""
    if isinstance(state, GatewayState):
        return msgspec.structs.replace(state, book=RegistryState())
    return state


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_living_actor_s_snapshot_is_what_a_replay_of_the_log_up_to_there_comes_to(seed):
    log, taken, make = await asyncio.to_thread(run_recorded, seed)
    assert {"staleness_gate-0", "task_source-0", "batcher-0", "evaluator-0", "session_manager-0", "trainer-0"} <= set(
        taken
    )
    for name, states in taken.items():
        replayed = make[name]()
        for envelope in log:
            await fold(replayed, [envelope])
            if (state := states.get(envelope.sequence)) is not None:
                found = msgspec.msgpack.decode(state, type=replayed.state_type)
                assert comparable(found) == comparable(copied(replayed)), (
                    f"seed {seed}, {name} after event {envelope.sequence}"
                )
                if isinstance(found, GatewayState):
                    assert set(found.book.finished) >= set(replayed.registry.snapshot().finished)


@pytest.mark.parametrize("seed", SEEDS)
async def test_an_actor_restored_anywhere_has_the_output_and_state_of_one_that_received_everything(seed):
    log, taken, make = await asyncio.to_thread(run_recorded, seed)
    dice = random.Random(seed)
    for name, states in taken.items():
        for cut in sorted(dice.sample(sorted(states), min(CUTS, len(states)))):
            whole, again = (
                make[name](),
                restored(make[name], msgspec.msgpack.decode(states[cut], type=make[name]().state_type)),
            )
            await fold(whole, log[:cut])
            replayed = isinstance(whole, Trainer)  # which would take real steps
            tail = log[cut:]
            assert await fold(again, tail, replayed=replayed) == await fold(whole, tail, replayed=replayed), (
                f"seed {seed}, {name} from {cut}"
            )
            assert comparable(copied(again)) == comparable(copied(whole)), f"seed {seed}, {name} from {cut}"
            assert again.status() == whole.status()
            if isinstance(whole, SessionManager):
                assert set(copied(again).book.finished) == set(copied(whole).book.finished)


async def test_a_trainer_that_begins_with_a_snapshot_comes_to_the_weights_of_the_run_before_its_first_step():
    log, taken, make = await asyncio.to_thread(run_recorded, 3)
    cut = max(taken["trainer-0"])
    trainer = restored(make["trainer-0"], msgspec.msgpack.decode(taken["trainer-0"][cut], type=Trainer.state_type))
    assert trainer.engine is None
    turn = LogContext(log[cut - 1], replayed=False)

    async def read(sequences):
        return [log[sequence - 1] for sequence in sequences]

    turn.read = read
    steps = [phase.total - phase.done for phase in [phase async for phase in trainer._catch_up(turn)]]
    assert steps == list(range(trainer.weight_version, 0, -1))
    assert trainer.engine.weight_version == trainer.weight_version > 0


# ---------------------------------------------------------------- actors that the simulation has not


class Decoder:
    def decode(self, ids, *, skip_special):
        return "".join(map(chr, ids))


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_episode_log_writes_the_same_lines_from_any_place_on(seed, tmp_path):
    log = (await asyncio.to_thread(Simulation(seed=seed, trouble=0.15).run)).log
    lines = {}
    for cut in (0, *sorted(random.Random(seed).sample(range(1, len(log)), CUTS))):
        path = tmp_path / f"{cut}.jsonl"
        path.touch()
        first = EpisodeLog(tmp_path / "ignored", lambda _: Decoder())
        await fold(first, log[:cut])
        second = EpisodeLog(path, lambda _: Decoder())
        second.restore(copied(first))
        await fold(second, log[cut:], replayed=False)
        lines[cut] = path.read_text().splitlines()
    for written in lines.values():
        assert written == lines[0][len(lines[0]) - len(written) :]
    assert lines[0]


def sealed(*events):
    """A log of these events."""
    made = [
        Envelope.seal(event, Stamp(id=f"e{n}", sender="test", time=float(n)), "test")
        for n, event in enumerate(events, start=1)
    ]
    return [msgspec.structs.replace(envelope, sequence=n) for n, envelope in enumerate(made, start=1)]


async def same_from_everywhere(make, log):
    """Restored after any event, an actor has the same output and state."""
    whole = make()
    expected = [await fold(whole, [envelope]) for envelope in log]
    for cut in range(len(log) + 1):
        first = make()
        await fold(first, log[:cut])
        again = restored(make, copied(first))
        assert [await fold(again, [envelope]) for envelope in log[cut:]] == expected[cut:], f"from {cut}"
        assert copied(again) == copied(whole)
    return expected


def evaluation(version, value):
    return EvaluationCompleted(
        weight_version=version,
        mode="greedy",
        tasks=4,
        failed=0,
        accuracy=value,
        mean_tokens=1.0,
        common_reward_mean=value,
    )


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_checkpointer_knows_its_shelf_from_any_place_on(seed, tmp_path):
    dice = random.Random(seed)
    events = []
    for step in range(1, 13):
        events.append(StepCompleted(step=step, metrics={}, sequences_checksum=""))
        if step % 2 == 0:
            written = CheckpointStaged(folder=str(tmp_path / f".writing-step-{step}"), step=step, cursor=step)
            saved = CheckpointCommitted(folder=str(tmp_path / f"step-{step}"), step=step, cursor=step)
            events += [*dice.sample([written, evaluation(step, dice.random())], 2), saved]
    make = lambda: Checkpointer(  # noqa: E731
        CheckpointConfig(every_steps=2, keep_last=2, keep_best="greedy"), folder=tmp_path, steps=12, evaluated_every=2
    )
    emitted = await same_from_everywhere(make, sealed(*events))
    assert sum(map(len, emitted)) > 12


async def test_the_example_source_draws_the_same_from_any_place_on():
    location = WeightsLocation(folder="weights", checksum="0", model="model")
    events = [
        ExamplesDropped(dropped=2, held_out_dropped=0, left=10, limit=64),
        WeightsPublished(weight_version=0, location=location),
        *(StepCompleted(step=step, metrics={}, sequences_checksum="") for step in (1, 2, 3)),
        RunStopping(reason="interrupted"),
        StepCompleted(step=4, metrics={}, sequences_checksum=""),
        RunResumed(recipe={}, reason="", folder=""),
        *(StepCompleted(step=step, metrics={}, sequences_checksum="") for step in (5, 6)),
    ]
    emitted = await same_from_everywhere(
        lambda: ExampleSource(examples=12, seed=3, batch_size=4, steps=7), sealed(*events)
    )
    assert sum(map(len, emitted)) == 7


async def test_the_metrics_actor_has_nothing_to_keep(tmp_path: Path):
    events = sealed(
        RunStarted(recipe={}, profile="", reason="", folder=""),
        StepCompleted(step=1, metrics={}, sequences_checksum=""),
    )
    await same_from_everywhere(lambda: Metrics(tmp_path / "metrics.jsonl"), events)
