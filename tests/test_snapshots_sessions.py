"""Sessions of agents outside the run: a gateway restored from a snapshot has the places, names and ends of one that
received everything."""

from __future__ import annotations

import random

import msgspec
import pytest
from support.samples import letters

from areal_actors.core.values import Interaction, SamplingParams, Task, TokenColumns, Trajectory
from areal_actors.gateway.gateway_state import GatewayState
from areal_actors.gateway.session_manager import SessionManager
from areal_actors.gateway.sessions.capacity import ExternalCapacity
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.messages import (
    CapacityGranted,
    EpisodeAbandoned,
    RunEpisode,
    SessionCreated,
    SessionStarted,
    StartSession,
    TrajectoryExported,
)

GROUP = 2


def gateway():
    made = SessionManager(
        GatewaySettings(),
        lambda _: letters(),
        secret=b"secret",
        max_model_len=400,
        serve_http=False,
        capacity=ExternalCapacity(GROUP),
    )
    made.external.caught_up = True
    return made


def work(episode):
    return RunEpisode(
        episode=episode, group=episode.partition(".")[0], task=Task(id="t", data={}), sampling=SamplingParams()
    )


def exported(episode):
    turn = Interaction(
        id="i", prompt_suffix=b"", completion=TokenColumns.of([1], [0.0], [0]), finish_reason="stop", reward=1.0
    )
    group = episode.partition(".")[0]
    return TrajectoryExported(
        trajectory=Trajectory(episode=episode, group=group, attempt=1, task="t", reward=1.0, interactions=(turn,))
    )


def ended(episode, *, well):
    return exported(episode) if well else EpisodeAbandoned(work=work(episode), reason="lost", detail="")


def lost(started):
    """The end of an attempt whose gateway was lost."""
    again = msgspec.structs.replace(started.work, attempts_left=1)
    return EpisodeAbandoned(work=again, reason="session", detail="")


def copied(actor):
    return msgspec.msgpack.decode(msgspec.msgpack.encode(actor.snapshot()), type=GatewayState)


def known(actor):
    """State that decides which sessions may start, under which name, and which have not ended."""
    return (
        actor.external.slots.capacity.snapshot(),
        actor.external.logged.snapshot(),
        set(actor.external.slots.started),
        actor.external.slots.exported,
        actor.external.slots.abandoned,
        set(actor.registry.snapshot().finished),
        {session.id for session in actor.registry.snapshot().kept},
    )


async def lived(send, dice):
    """A life of a gateway: its log, and what it would have kept at every place of it."""
    actor, log, taken, open_ = gateway(), [], [], []

    async def receive(*events):
        for event in events:
            log.append(event)
            await send(actor, event)
            taken.append(copied(actor))

    for _ in range(60):
        what, number, well = (
            dice.choice(["grant", "start", "start", "end", "end", "lose"]),
            dice.randrange(6),
            dice.random() < 0.5,
        )
        if what == "grant":
            await receive(
                CapacityGranted(first_group=actor.external.slots.capacity.granted, groups=1, weight_version=0)
            )
        elif what == "start":
            emitted = await send(actor, StartSession(task=f"task-{number % 3}"))
            if isinstance(emitted[0], SessionStarted):
                assert isinstance(emitted[-1], SessionCreated)
                if log and number % 2:
                    taken[-1] = copied(actor)  # a checkpoint may come between a start and its return by the log
                open_.append(emitted[0].work.episode)
                await receive(emitted[0])
        elif what == "lose" and open_:
            await receive(lost(actor.external.slots.started[open_.pop(number % len(open_))]))
        elif open_:
            await receive(ended(open_.pop(number % len(open_)), well=well))
    return actor, log, taken


@pytest.mark.parametrize("seed", range(40))
async def test_a_gateway_restored_anywhere_has_the_state_of_one_that_received_everything(seed, send):
    _, log, taken = await lived(send, random.Random(seed))
    whole = gateway()
    await send(whole, *log, replayed=True)
    assert len(log) > 10
    for place in range(len(log)):
        again = gateway()
        again.restore(taken[place])
        await send(again, *log[place + 1 :], replayed=True)
        assert known(again) == known(whole)
        keys = dict(again.registry.snapshot().keys)
        for event in log:
            if isinstance(event, SessionStarted):
                assert keys[event.key] == event.session


def test_groups_that_have_begun_are_counted_and_not_listed():
    capacity = ExternalCapacity(GROUP)
    capacity.grant(0, 1000)
    for _ in range(999 * GROUP):
        slot = capacity.next_slot("task")
        capacity.take(slot, 0.0)
        capacity.end_episode(slot.episode)
    assert len(capacity.begun) == 0
    assert capacity.room(0.0) == GROUP
    again = capacity.copy()
    assert again.next_slot("task") == capacity.next_slot("task")
