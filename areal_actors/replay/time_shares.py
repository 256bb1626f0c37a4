"""Shares of a run's time.

A fold over its log of what the trainer did, and of gate and episodes while it waited for a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from areal_actors.lint.fault import LearningFault
from areal_actors.messages import (
    BatchFormed,
    ExamplesDrawn,
    RunFinished,
    RunForked,
    RunResumed,
    RunStarted,
    StepCompleted,
    WeightsPublished,
)
from areal_actors.replay.in_flight import InFlight
from areal_actors.reward_hacking.alarm import HackAlarm
from areal_bus.message import Message

Activity = Literal[
    "prepares the model", "waits for the evaluation before step 1", "waits for batches", "trains", "publishes weights"
]
BEFORE: tuple[Activity, ...] = ("prepares the model", "waits for the evaluation before step 1")
"""Activities before the first step."""
Stage = Literal[
    "in the first call or before it",
    "between calls or in a later one",
    "scored",
    "waiting for others of the group",
    "failed",
]
STAGES: dict[str, Stage] = {
    "not begun": "in the first call or before it",
    "sampling": "between calls or in a later one",
    "scored": "scored",
    "exported": "waiting for others of the group",
    "failed": "failed",
}
"""Stage of an episode of an incomplete group, by its phase."""
ENDED = ("exported", "failed")
SAMPLED_EVERY = 0.02
"""Seconds of waiting after which the episodes in flight are counted again."""


class TimeShares(msgspec.Struct):
    """Seconds by activity of the trainer.

    And while it waited for a batch, by bound of the gate and by stage of the episodes.
    """

    trainer: dict[str, float] = {}
    bounds: dict[str, float] = {}
    """Seconds of waiting by the bound that the gate had reached."""
    bounds_in_training: dict[str, float] = {}
    """Seconds of training by that bound."""
    stages: dict[str, float] = {}
    """Episode-seconds by stage, of groups that are not complete."""
    complete: float = 0.0
    """Group-seconds of complete groups that waited for the rest of their batch."""
    counted_seconds: float = 0.0
    """Seconds of waiting in which episodes were counted."""

    def seconds(self) -> float:
        """Returns the time after these activities."""
        return sum(spent for activity, spent in self.trainer.items() if activity not in BEFORE)

    def waiting(self) -> float:
        """Returns the share of that time in which the trainer waited for a batch."""
        return self.trainer.get("waits for batches", 0.0) / self.seconds() if self.seconds() else 0.0


class LogFindings(msgspec.Struct, frozen=True):
    """Findings about the limit of a run that need its whole log."""

    shares: TimeShares
    without_gate: str
    """Reason why the gate's bounds are not known; empty if they are."""
    signal: list[LearningFault]
    """Causes for which the run may not learn, from its first episodes."""
    hacks: list[HackAlarm] = []
    """Features of outputs that are paid whatever the task."""


class OpenWait(msgspec.Struct, frozen=True):
    """A wait of an actor of a live run."""

    actor: str
    name: str
    seconds: float
    seconds_left: float
    """Seconds until its deadline."""


def share(seconds: Mapping[str, float], name: str) -> float:
    """Returns the share of a name in all seconds; 0 without any."""
    total = sum(seconds.values())
    return seconds.get(name, 0.0) / total if total else 0.0


def _add(seconds: dict[str, float], name: str, spent: float) -> None:
    seconds[name] = seconds.get(name, 0.0) + spent


class TimeFold:
    """Folds the events of a log into shares of time."""

    def __init__(self) -> None:
        self.shares = TimeShares()
        self.activity: Activity | None = None
        """Present activity of the trainer; None before and after a run, and at the beginning of a trimmed log."""
        self._since = self._counted_at = 0.0
        self._formed = -1
        """Latest step, counted from 0, whose batch is formed."""

    def receive(self, message: Message, time: float, *, bound: str, flying: InFlight | None) -> None:
        """Fold the next event.

        `bound` is what the gate had reached before it, empty if unknown, `flying` what was in flight.
        """
        time = max(time, self._since)  # each process has its own clock
        if self.activity is not None and not isinstance(message, RunForked | RunResumed):
            self._spend(self.activity, time - self._since, time, bound, flying)
        self._since = time
        match message:
            case RunStarted() | RunResumed():
                self.activity = "prepares the model"
            case BatchFormed() | ExamplesDrawn():
                self._formed = max(self._formed, message.step)
                if self.activity == "waits for batches":
                    self.activity = "trains"
            case StepCompleted():
                self.activity = "publishes weights"
            case WeightsPublished():
                self.activity = "trains" if self._formed >= message.weight_version else "waits for batches"
                self._counted_at = time
            case RunFinished():
                self.activity = None

    def _spend(self, activity: Activity, seconds: float, time: float, bound: str, flying: InFlight | None) -> None:
        if activity == "waits for batches" and bound == "baseline":
            activity = "waits for the evaluation before step 1"
            self._counted_at = time
        _add(self.shares.trainer, activity, seconds)
        if activity == "trains" and bound:
            _add(self.shares.bounds_in_training, bound, seconds)
        if activity != "waits for batches":
            return
        if bound:
            _add(self.shares.bounds, bound, seconds)
        since = time - self._counted_at
        if flying is not None and since >= SAMPLED_EVERY:
            self._count(since, flying)
            self._counted_at = time

    def _count(self, seconds: float, flying: InFlight) -> None:
        self.shares.counted_seconds += seconds
        for group in flying.groups.values():
            if all(episode.phase in ENDED for episode in group.values()):
                self.shares.complete += seconds
                continue
            for episode in group.values():
                if episode.phase in STAGES:
                    _add(self.shares.stages, STAGES[episode.phase], seconds)
