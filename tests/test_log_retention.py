"""The log is trimmed to what the kept checkpoints and snapshots still need."""

from __future__ import annotations

import asyncio

import pytest
from support import story
from support.simulation import GROUP, Simulation

from areal_actors.audit.fold import AuditFold
from areal_actors.batching.batcher import Batcher
from areal_actors.core.snapshots import Snapshot, SnapshotStore
from areal_actors.core.values import Value
from areal_actors.display.run_state import TELEMETRY, RunState
from areal_actors.display.snapshot_start import AUDIT, RUN_STATE, restore_fold, trimmed_notice
from areal_actors.display.summary import write_summary
from areal_actors.evaluation.evaluator import Evaluator
from areal_actors.gateway.session_manager import SessionManager
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.messages import (
    BatchFormed,
    CheckpointCommitted,
    ExamplesDrawn,
    LogTrimmed,
    SnapshotStored,
    StepCompleted,
    TrajectoryExported,
    TrajectoryRef,
)
from areal_actors.metrics.episode_log import EpisodeLog
from areal_actors.metrics.metrics_file import Metrics
from areal_actors.recipe.run_settings import LogSettings
from areal_actors.recovery.log_retention import FOLDING, LogReaders, LogRetention, folds_of
from areal_actors.rewards.reward_worker import RewardWorker
from areal_actors.rollout.rollout_worker import RolloutWorker
from areal_actors.staleness.staleness_gate import StalenessGate
from areal_actors.supervised.example_source import ExampleSource
from areal_actors.tasks.task_source import TaskSource
from areal_actors.training.checkpointer import Checkpointer
from areal_actors.training.trainer import Trainer
from areal_bus.base import Stamp
from areal_bus.errors import EventsTrimmed
from areal_bus.memory import MemoryBus

ALWAYS = LogSettings(max_mb=0)


class Nothing:
    state_type = Value
    state_version = 1

    def snapshot(self):
        return Value()

    def restore(self, state):
        pass


class Run:
    """A log, a store, and who trims."""

    def __init__(self, tmp_path, settings=ALWAYS, folds=("a", "b"), keep_last=2):
        self.bus = MemoryBus("gsm8k-grpo")
        self.store = SnapshotStore(tmp_path / "snapshots")
        self.count = 0
        self.checkpoints = []
        self.retention = LogRetention(
            settings,
            self.bus,
            self.store,
            folds=folds,
            keep_last=keep_last,
            blobs=tmp_path / "blobs",
            publish=self.publish,
        )

    async def publish(self, event):
        self.count += 1
        return await self.bus.publish(event, Stamp(id=f"e{self.count}", sender="test", time=float(self.count)))

    async def train(self, step, oldest=0, extra=5):
        """Some events, and a batch."""
        for n in range(extra):
            await self.publish(StepCompleted(step=n, metrics={}, sequences_checksum=""))
        batch = BatchFormed(
            step=step,
            groups=((TrajectoryRef(episode="0.0", sequence=1),),),
            oldest_version=0,
            trained_trajectories=0,
            trained_tokens=0,
            dropped_trajectories=0,
            dropped_tokens=0,
            oldest_sequence=oldest,
        )
        return await self.publish(batch)

    async def save(self, step, cursor, *, folds=("a", "b")):
        saved = CheckpointCommitted(folder=f"checkpoints/step-{step}", step=step, cursor=cursor)
        self.checkpoints.append(saved)
        place = await self.publish(saved)
        for fold in folds:
            self.store.write(Snapshot.of(fold, Nothing(), place, f"e{self.count}"))
            self.retention.receive(SnapshotStored(fold=fold, after=place, size=1), self.checkpoints)
            if self.retention._trimming:
                await self.retention._trimming
        return place

    async def first(self):
        return (await self.bus.span()).first

    async def trimmed(self):
        return [
            envelope.open(LogTrimmed) async for envelope in self.bus.log() if envelope.subject == LogTrimmed.subject
        ]


async def test_nothing_goes_before_there_is_something_to_fall_back_to(tmp_path):
    run = Run(tmp_path)
    await run.save(1, await run.train(0, oldest=3))
    assert await run.first() == 1


async def test_what_the_older_of_the_kept_checkpoints_needs_stays(tmp_path):
    run = Run(tmp_path)
    first = await run.train(0, oldest=4)
    await run.save(1, first)
    await run.save(2, await run.train(1, oldest=9))
    assert await run.first() == 4
    (event,) = await run.trimmed()
    assert (event.first, event.step, event.removed) == (4, 1, 3)
    assert (await run.bus.read([first]))[0].open(BatchFormed).step == 0
    await run.save(3, await run.train(2, oldest=11))
    assert await run.first() == 9


async def test_a_snapshot_that_is_older_than_the_checkpoints_holds_the_log(tmp_path):
    run = Run(tmp_path)
    places = []
    for step in range(1, 5):
        cursor = await run.train(step - 1, oldest=run.count)
        places.append(await run.save(step, cursor, folds=("a", "b") if step < 3 else ("a",)))
    assert await run.first() <= places[0]
    before = await run.first()
    await run.save(5, await run.train(4, oldest=run.count))
    assert before < await run.first() <= places[1]


async def test_batches_that_do_not_list_their_needs_keep_the_log_whole(tmp_path):
    run = Run(tmp_path)
    for step in range(1, 5):
        await run.save(step, await run.train(step - 1))
    assert await run.first() == 1


async def test_a_log_that_is_small_enough_or_to_be_kept_is_kept(tmp_path):
    for settings in (LogSettings(), LogSettings(keep="all", max_mb=0)):
        run = Run(tmp_path / settings.keep, settings)
        for step in range(1, 5):
            await run.save(step, await run.train(step - 1, oldest=run.count + 1))
        assert await run.first() == 1


async def test_examples_need_only_what_was_drawn_since(tmp_path):
    run = Run(tmp_path)
    cursors = []
    for step in range(1, 4):
        for n in range(5):
            await run.publish(StepCompleted(step=n, metrics={}, sequences_checksum=""))
        cursors.append(await run.publish(ExamplesDrawn(step=step - 1, numbers=(1, 2), epoch=0)))
        await run.save(step, cursors[-1])
    assert await run.first() == cursors[1]


async def test_large_bodies_beside_the_log_count_for_its_size(tmp_path):
    run = Run(tmp_path, LogSettings(max_mb=1))
    (tmp_path / "blobs").mkdir()
    for step in range(1, 4):
        await run.save(step, await run.train(step - 1, oldest=run.count + 1))
    assert await run.first() == 1
    (tmp_path / "blobs" / "large.msgpack").write_bytes(bytes(2 << 20))
    await run.save(4, await run.train(3, oldest=run.count + 1))
    assert await run.first() > 1


@pytest.mark.parametrize("seed", range(6))
async def test_what_a_batch_names_as_oldest_is_not_later_than_anything_trained_from_it_on(seed):
    log = (await asyncio.to_thread(Simulation(seed=seed, max_staleness=2, trouble=0.1).run)).log
    batches = [envelope.open(BatchFormed) for envelope in log if envelope.subject == BatchFormed.subject]
    assert len(batches) == 5
    for number, batch in enumerate(batches):
        later = [member.sequence for one in batches[number:] for group in one.groups for member in group]
        assert 0 < batch.oldest_sequence <= min(later)
        assert log[batch.oldest_sequence - 1].subject == TrajectoryExported.subject
    assert batches[-1].oldest_sequence > GROUP


def test_the_actors_that_fold_are_those_that_hold_the_log():
    actors = (
        *(
            Batcher,
            Checkpointer,
            EpisodeLog,
            Evaluator,
            ExampleSource,
            InferenceWorker,
            Metrics,
            RewardWorker,
            RolloutWorker,
        ),
        *(SessionManager, StalenessGate, TaskSource, Trainer),
    )
    assert {actor.kind() for actor in actors if actor.state_type is not None} == FOLDING
    listening = {
        actor.kind()
        for actor in actors
        if actor.history == "all" and any(hasattr(kind, "subject") for kind in actor.handlers)
    }
    assert listening - FOLDING == {"reward_worker"}, "an actor that hears events of the past must keep snapshots"
    assert folds_of(
        [("trainer-0", "trainer"), ("rollout_worker-0", "rollout_worker")], FOLDING, {"run_state": None}
    ) == (
        "trainer-0",
        "run_state",
    )


# ---------------------------------------------------------------- readers


def snapshot_of(state):
    return state.snapshot()


async def published(run, envelopes):
    """The story as a log."""
    kinds = {}
    for envelope in envelopes:
        kinds[envelope.subject] = envelope
        run.count += 1
        run.bus._append(envelope)


def test_everything_that_events_change_in_a_run_state_is_in_its_snapshot():
    assert set(vars(RunState())) - TELEMETRY == set(RunState.state_type.__struct_fields__)


async def test_a_run_state_begun_with_a_snapshot_anywhere_comes_to_the_same():
    envelopes = list(story.whole_run())
    whole = RunState()
    for cut in range(len(envelopes)):
        again = RunState()
        again.restore(whole.snapshot())
        for envelope in envelopes[cut:]:
            again.receive(envelope)
        whole.receive(envelopes[cut])
        if cut % 10 == 0:
            everything = RunState()
            for envelope in envelopes:
                everything.receive(envelope)
            assert snapshot_of(again) == snapshot_of(everything)


async def test_a_snapshot_does_not_change_with_the_state_that_it_was_taken_of():
    state = RunState()
    envelopes = list(story.whole_run())
    for envelope in envelopes[:20]:
        state.receive(envelope)
    taken = state.snapshot()
    counted = (len(taken.steps), dict(taken.episodes.abandoned), dict(taken.loaded))
    for envelope in envelopes[20:]:
        state.receive(envelope)
    assert (len(taken.steps), dict(taken.episodes.abandoned), dict(taken.loaded)) == counted


async def test_the_summary_of_a_trimmed_run_has_the_totals_of_a_whole_one(tmp_path):
    envelopes = [*story.whole_run()]
    saved = next(n for n, envelope in enumerate(envelopes) if envelope.subject == CheckpointCommitted.subject)
    whole, part = Run(tmp_path / "whole"), Run(tmp_path / "part")
    (tmp_path / "whole").mkdir()
    await published(whole, envelopes)
    readers = LogReaders(part.bus, part.store, {RUN_STATE: RunState(), AUDIT: AuditFold()}, part.publish)
    for envelope in story.whole_run():
        part.bus._append(envelope)
        readers.receive(envelope)
    await readers.close()
    assert part.store.sequences(RUN_STATE) == [saved + 1]
    await part.bus.trim(saved + 1)
    for run, folder in ((whole, tmp_path / "whole"), (part, tmp_path / "part")):
        await write_summary(run.bus, folder)
    lines = [(tmp_path / name / "summary.txt").read_text().splitlines() for name in ("whole", "part")]
    extra = [line for line in lines[1] if line not in lines[0]]
    assert [line for line in lines[1] if line not in extra] == lines[0]
    assert len(extra) == 1
    assert f"the log begins at event {saved + 1}; earlier events were trimmed" in extra[0]


async def test_without_a_snapshot_totals_are_reported_as_incomplete(tmp_path):
    run = Run(tmp_path)
    await published(run, story.whole_run())
    await run.bus.trim(30)
    state = RunState()
    assert await restore_fold(run.bus, run.store, state) == 0
    assert (
        "the log begins at event 30; earlier events were trimmed, and no snapshot of the run was found"
        in await trimmed_notice(run.bus, state)
    )
    with pytest.raises(EventsTrimmed):
        await LogReaders(run.bus, run.store, {RUN_STATE: RunState()}, run.publish).catch_up()


async def test_readers_catch_up_from_their_snapshot(tmp_path):
    run = Run(tmp_path)
    state = RunState()
    readers = LogReaders(run.bus, run.store, {RUN_STATE: state}, run.publish)
    assert await readers.catch_up() == 0
    for envelope in story.whole_run():
        run.bus._append(envelope)
        readers.receive(envelope)
    await readers.close()
    after = run.store.sequences(RUN_STATE)[-1]
    await run.bus.trim(after)
    again = RunState()
    last = await LogReaders(run.bus, run.store, {RUN_STATE: again}, run.publish).catch_up()
    span = await run.bus.span()
    assert (span.first, span.last) == (after, last)
    assert snapshot_of(again) == snapshot_of(state)
