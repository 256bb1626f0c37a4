"""For tests of your own: replays a recorded run to an actor or a reward function.

    from areal_actors.testing import replayed, rescored

    def test_my_batcher_decides_as_the_recorded_one():
        assert replayed("run.log", MyBatcher()) == []

    def test_my_reward_agrees_with_the_recorded_one():
        assert not [score for score in rescored("run.log", my_reward) if score.differs()]

`areal-actors export RUN run.log` writes the recording; a name that ends in `.xz` or `.gz` is compressed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.messages import KINDS, RunResumed, RunStarted
from areal_actors.replay import tape as tapes
from areal_actors.replay.fold import FoldReplay, LogDifference
from areal_actors.replay.rescore import Rescored, rescored_log
from areal_actors.replay.tape import TapeDifference
from areal_actors.rewards import Reward
from areal_actors.runtime.actor import Actor
from areal_bus.base import Envelope
from areal_bus.message import Event
from areal_bus.recorded import read_log, read_tape

__all__ = ["LogDifference", "Rescored", "TapeDifference", "replayed", "replayed_tape", "rescored"]


def replayed(recording: str | Path, actor: Actor, *, instance: str = "") -> list[LogDifference]:
    """Returns the differences between the events that a new actor emits and those of a recorded log.

    Empty if there are none.
    For actors that are folds over events: they receive all their input from the log, may read it, and ask no other
    actor.

    Args:
        recording: file written by `areal-actors export`.
        actor: a new actor, with the settings of the run.
        instance: its name in the run, such as `batcher-0`; by default the first of its kind.

    Raises:
        RecordingDamaged: the file is no log, or is damaged.
        LogUnavailable: the actor sent a request to another one.
    """
    events = {kind.subject: kind for kind in KINDS if issubclass(kind, Event)}
    readable: dict[int, Envelope] = {}

    async def play() -> list[LogDifference]:
        replay = FoldReplay(actor, instance or f"{actor.kind()}-0")
        differences: list[LogDifference] = []
        for envelope in read_log(Path(recording)):
            if envelope.subject in (RunStarted.subject, RunResumed.subject):
                replay.seed = _seed_of(envelope)
            readable[envelope.sequence] = envelope
            differences += replay.compare(envelope)
            kind = events.get(envelope.subject)
            if kind is not None and replay.handles(kind):
                await replay.receive(envelope, envelope.open(kind), readable)
        await actor.stop()
        return differences

    return asyncio.run(play())


def replayed_tape(recording: str | Path, actor: Actor, *, instance: str = "", seed: int = 0) -> list[TapeDifference]:
    """Returns the differences between a tape and the messages of a new actor; empty if there are none.

    For every actor: a tape (`record_actor_io = true`) also holds requests, replies and work items. `seed` is the run's.

    Raises:
        RecordingDamaged: the file is no tape, or is damaged.
    """
    entries: Iterable[Any] = read_tape(Path(recording))
    return asyncio.run(tapes.replay(actor, entries, instance=instance or f"{actor.kind()}-0", seed=seed))


def rescored(recording: str | Path, reward: Reward) -> list[Rescored]:
    """Returns every scored episode of a recorded log with its reward and the one that `reward` gives now.

    An exception of the reward function is in the `error` of the score.

    Raises:
        RecordingDamaged: the file is no log, or is damaged.
    """

    async def score() -> list[Rescored]:
        return [episode async for episode in rescored_log(read_log(Path(recording)), reward)]

    return asyncio.run(score())


def _seed_of(envelope: Envelope) -> int:
    seed: int = msgspec.msgpack.decode(envelope.body)["recipe"].get("seed", 0)
    return seed
