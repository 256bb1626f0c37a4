"""The watchdog: turns "nothing moves" into a sentence, and a row of failures into the end of the run.

It only listens: a fold over events and heartbeats, asked now and then what it thinks.
"""

from __future__ import annotations

from collections import Counter

from areal_actors.messages import (
    ActorFailed,
    ActorStarted,
    ActorStopped,
    CheckpointSaved,
    EpisodeAbandoned,
    EpisodeEvaluated,
    Heartbeat,
    InteractionRecorded,
    LossEvaluated,
    StepCompleted,
    TrainerPhase,
    TrajectoryExported,
    WeightsLoaded,
    WeightsPublished,
)
from areal_actors.settings import WatchdogSettings
from bus.message import Message

PROGRESS = (
    ActorStarted,
    CheckpointSaved,
    EpisodeEvaluated,
    InteractionRecorded,
    LossEvaluated,
    StepCompleted,
    TrainerPhase,
    TrajectoryExported,
    WeightsLoaded,
    WeightsPublished,
)
HEARD = (*PROGRESS, ActorFailed, ActorStopped, EpisodeAbandoned, Heartbeat)
"""What it listens to."""


class Watchdog:
    """Knows when something last moved, who was last heard, and how many episodes have failed in a row."""

    def __init__(self, settings: WatchdogSettings, now: float) -> None:
        self.settings = settings
        self.moved = now
        self.reported = now
        self.beats: dict[str, Heartbeat] = {}
        self.heard_at: dict[str, float] = {}
        self.failures: Counter[str] = Counter()
        self.rejections: Counter[str] = Counter()

    def heard(self, message: Message, now: float) -> None:
        """Take in a message."""
        if isinstance(message, PROGRESS):
            self.moved = now
        if isinstance(message, Heartbeat):
            self.beats[message.actor] = message
            self.heard_at[message.actor] = now
        elif isinstance(message, ActorFailed | ActorStopped):
            self.beats.pop(message.actor, None)
            self.heard_at.pop(message.actor, None)
        elif isinstance(message, EpisodeAbandoned) and message.work.attempts_left == 0:
            counts = self.rejections if message.reason == "rejected" else self.failures
            counts[f"{message.reason}: {message.detail}"] += 1
        elif isinstance(message, TrajectoryExported):
            self.failures.clear()
            self.rejections.clear()
        elif isinstance(message, EpisodeEvaluated):
            self.failures.clear()

    def silent_processes(self, now: float) -> list[str]:
        """Processes of which an actor has not been heard for too long."""
        late = [actor for actor, heard in self.heard_at.items() if now - heard > self.settings.heartbeat_seconds]
        return sorted({self.beats[actor].process for actor in late})

    def too_many_failures(self) -> str:
        """Why the run cannot go on, empty if it can."""
        if (count := self.rejections.total()) >= self.settings.max_rejections_in_a_row:
            reason, times = self.rejections.most_common(1)[0]
            return (
                f"{count} episodes in a row were rejected and none was exported; most common reason ({times} times): {reason}; "
                "accept more episodes, or raise watchdog.max_rejections_in_a_row"
            )
        if (count := self.failures.total()) < self.settings.max_failures_in_a_row:
            return ""
        reason, times = self.failures.most_common(1)[0]
        return f"{count} episodes in a row were abandoned for good; most often ({times} times): {reason}"

    def stalled(self, now: float) -> tuple[str, float] | None:
        """Who waits for whom and for how long nothing has moved, once per `stall_seconds` of silence."""
        if now - max(self.moved, self.reported) < self.settings.stall_seconds:
            return None
        self.reported = now
        return self.sentence(now), now - self.moved

    def sentence(self, now: float) -> str:
        """What every actor waits for, in one sentence."""
        parts = [f"nothing has moved for {now - self.moved:.0f} s"]
        if gate := self._status("staleness_gate"):
            parts.append(
                f"the staleness gate ({_bound(str(gate['bound']))}) has {gate['running']:g} groups running, "
                f"{gate['complete']:g} complete and {gate['in_batch']:g} in training at weight version {gate['weight_version']:g}"
            )
        if batcher := self._status("batcher"):
            parts.append(f"the batcher has {batcher['complete_groups']:g} complete groups of the {batcher['batch_size']:g} of a batch")
        if source := self._status("example_source"):
            parts.append(f"the example source has drawn the examples of {source['steps_drawn']:g} steps")
        for beat in sorted(self.beats.values(), key=lambda beat: beat.actor):
            doing = [f"{count} {name}" for name, count in beat.handling.items()]
            waits = [f"waits for {wait.name} since {now - wait.since:.0f} s" for wait in beat.waits[:1]]
            if doing or waits:
                parts.append(f"{beat.actor} {', '.join([f'handles {name}' for name in doing] + waits)}")
        return "; ".join(parts)

    def _status(self, kind: str) -> dict[str, float | str] | None:
        return next((beat.status for actor, beat in self.beats.items() if actor.startswith(kind)), None)


def _bound(name: str) -> str:
    return {
        "none": "no bound binds",
        "staleness": "the staleness bound binds",
        "concurrency": "max_concurrent binds",
        "steps": "enough is under way for the remaining steps",
        "baseline": "it waits for the evaluation before the first step",
        "evaluation": "it waits for an evaluation",
        "weights": "it waits for weights to be loaded",
        "stopped": "the run is stopping",
    }.get(name, name)
