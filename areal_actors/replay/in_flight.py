"""Groups and episodes in flight after an event of a log: a fold over the events of a sample's path."""

from __future__ import annotations

from typing import Literal

import msgspec

from areal_actors.messages import (
    BatchFormed,
    CapacityGranted,
    EpisodeAbandoned,
    EpisodeScored,
    TrajectoryDropped,
    TrajectoryExported,
    WeightsPublished,
    recorded_calls,
)
from areal_bus.message import Message

Phase = Literal["not begun", "sampling", "scored", "exported", "failed", "in batch"]


class EpisodeInFlight(msgspec.Struct):
    """An episode of a group that is neither trained nor dropped."""

    episode: str
    phase: Phase = "not begun"
    """`not begun`: no call of its agent has ended; `failed`: its last attempt was abandoned."""
    calls: int = 0
    """Completed model calls of the attempt."""
    attempt: int = 1
    since: float = 0.0
    """Time of the event that began this phase, in seconds since the epoch."""


class InFlight:
    """Groups in flight, by number, each with its episodes."""

    def __init__(self, group_size: int) -> None:
        self.group_size = group_size
        self.groups: dict[str, dict[str, EpisodeInFlight]] = {}
        self._batches: dict[int, tuple[str, ...]] = {}
        """Groups of each batch whose weights are not published, by step."""

    def receive(self, message: Message, time: float) -> None:
        """Fold the next event of the log, sent at this time (seconds since the epoch)."""
        match message:
            case CapacityGranted():
                for number in range(message.first_group, message.first_group + message.groups):
                    names = [f"{number}.{member}" for member in range(self.group_size)]
                    self.groups[str(number)] = {name: EpisodeInFlight(name, since=time) for name in names}
            case BatchFormed():
                self._record_batch(message, time)
            case TrajectoryDropped():
                self.groups.pop(message.group, None)
            case WeightsPublished():
                for step in [step for step in self._batches if step < message.weight_version]:
                    for trained in self._batches.pop(step):
                        self.groups.pop(trained, None)
            case _:
                self._of_an_episode(message, time)

    def _of_an_episode(self, message: Message, time: float) -> None:
        for call in recorded_calls(message):
            if (episode := self._episode(call.episode)) is not None and call.is_of(episode.attempt):
                episode.calls += 1
                if episode.phase == "not begun":
                    self._moves(episode.episode, "sampling", time)
        match message:
            case EpisodeScored():
                self._moves(message.work.episode, "scored", time)
            case TrajectoryExported():
                self._moves(message.trajectory.episode, "exported", time)
            case EpisodeAbandoned():
                self._record_abandoned(message, time)

    def _record_batch(self, message: BatchFormed, time: float) -> None:
        self._batches[message.step] = tuple(str(number) for number in message.group_numbers())
        for number in self._batches[message.step]:
            for name in self.groups.get(number, {}):
                self._moves(name, "in batch", time)

    def _episode(self, name: str) -> EpisodeInFlight | None:
        return self.groups.get(name.partition(".")[0], {}).get(name)

    def _moves(self, name: str, phase: Phase, time: float) -> None:
        episode = self._episode(name)
        if episode is not None and episode.phase != phase:
            episode.phase, episode.since = phase, time

    def _record_abandoned(self, message: EpisodeAbandoned, time: float) -> None:
        if (episode := self._episode(message.work.episode)) is None:
            return
        if message.work.attempts_left:
            episode.attempt, episode.calls = message.work.attempt + 1, 0
            self._moves(episode.episode, "not begun", time)
        else:
            self._moves(episode.episode, "failed", time)
