"""Episodes in a run's log: a fold over its events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from areal_actors.core.values import Trajectory
from areal_actors.display.run_state import RunState
from areal_actors.messages import (
    BatchFormed,
    BatchRefused,
    CapacityGranted,
    EpisodeAbandoned,
    EpisodeEvaluated,
    EpisodeScored,
    EvaluationCompleted,
    InteractionRecorded,
    RunEpisode,
    RunResumed,
    RunStarted,
    TrajectoryDropped,
    TrajectoryExported,
    WeightsPublished,
    recorded_calls,
)
from areal_actors.messages.episode_ends import SURPLUS, EpisodeEnd, EpisodeEnds, Outcome, outcome_of
from areal_bus.base import Envelope
from areal_bus.message import Message


class EndedEpisode(msgspec.Struct, frozen=True):
    """One ended attempt at an episode."""

    event: EpisodeEnd
    time: float
    """Seconds since the epoch."""
    sequence: int
    """Position of the event in the log."""
    work: RunEpisode | None
    """Task and settings; None if the log begins after they were recorded."""
    output: str
    """Text that the agent returned."""
    recorded: tuple[InteractionRecorded, ...] = ()
    """Completed model calls of the attempt."""
    seconds: float | None = None
    """Time since the group was granted; None in evaluation."""

    @property
    def episode(self) -> str:
        """Name of the episode."""
        return self.trajectory.episode if self.trajectory else self._work.episode

    @property
    def attempt(self) -> int:
        """Number of the attempt, from 1."""
        return self.trajectory.attempt if self.trajectory else self._work.attempt

    @property
    def group(self) -> str:
        """Number of the group; text, since evaluated episodes have names of their own."""
        return self.trajectory.group if self.trajectory else self._work.group

    @property
    def purpose(self) -> str:
        """`train` or `evaluate`."""
        return "train" if self.trajectory else self._work.purpose

    @property
    def task_id(self) -> str:
        """Id of the task."""
        return self.trajectory.task if self.trajectory else self._work.task.id

    @property
    def reward(self) -> float | None:
        """Reward; None for an abandoned attempt."""
        if isinstance(self.event, EpisodeAbandoned):
            return None
        return self.event.reward if isinstance(self.event, EpisodeEvaluated) else self.event.trajectory.reward

    @property
    def _work(self) -> RunEpisode:
        assert not isinstance(self.event, TrajectoryExported)
        return self.event.work

    @property
    def outcome(self) -> Outcome:
        """`exported`, `evaluated`, `abandoned`, `rejected` or `surplus`; only `abandoned` is a failure."""
        return outcome_of(self.event)

    @property
    def trajectory(self) -> Trajectory | None:
        """The trajectory, if it was exported."""
        return self.event.trajectory if isinstance(self.event, TrajectoryExported) else None


class RecordedBatch(msgspec.Struct, frozen=True):
    """The batch of a step."""

    event: BatchFormed
    sequence: int
    """Position of the event in the log."""
    recipe: dict[str, Any]
    """Resolved recipe of the run at that time."""
    refused: BatchRefused | None = None
    """Sequences that the trainer left out of the step."""

    def episodes(self) -> int:
        """Returns the number of episodes."""
        return sum(map(len, self.event.groups))


def describe_outcome(outcome: str, reason: str, step: int | None) -> str:
    """Returns what became of an ended attempt: `trained in step 3`, `dropped: stale`, `abandoned: timeout`, `waiting` and others.

    `reason` is that of an abandoned attempt, or of a dropped trajectory; `step` has trained it.
    """
    if outcome == "abandoned":
        return f"abandoned: {reason}"
    if outcome != "exported":
        return outcome
    if step:
        return f"trained in step {step}"
    return SURPLUS if reason == SURPLUS else f"dropped: {reason}" if reason else "waiting"


@dataclass(eq=False)
class Records:
    """Ended episodes with what became of them, and the state of the run."""

    state: RunState = field(default_factory=RunState)
    ended: dict[int, EndedEpisode] = field(default_factory=dict)
    """By position in the log."""
    trained: dict[int, int] = field(default_factory=dict)
    """Step, counted from 1, by position of the trajectory in the log."""
    batches: dict[int, RecordedBatch] = field(default_factory=dict)
    """Batch of each step, counted from 1."""
    dropped: dict[str, str] = field(default_factory=dict)
    """Reason by episode."""
    model: str = ""
    """Model folder, relative to the run's if it is inside."""
    evaluated_at: list[float] = field(default_factory=list)
    """Time of each evaluation in the log."""
    _ends: EpisodeEnds = field(default_factory=EpisodeEnds)
    _granted: dict[str, float] = field(default_factory=dict)
    _scored: dict[str, EpisodeScored] = field(default_factory=dict)
    _recorded: dict[str, list[InteractionRecorded]] = field(default_factory=dict)
    _abandoned: dict[tuple[str, int], int] = field(default_factory=dict)
    """Position of the end of each abandoned attempt; some of its calls may be reported after it."""

    def receive(self, envelope: Envelope, *, is_known: bool = False) -> None:
        """Fold the next event of the log; `known` if the state was restored from a snapshot that has it.

        Raises:
            CorruptMessage: the envelope is damaged.
        """
        message = RunState().receive(envelope) if is_known else self.state.receive(envelope)
        if message is not None:
            self._fold(message, envelope)

    def _fold(self, message: Message, envelope: Envelope) -> None:  # noqa: C901, PLR0912 - a table of a few lines each
        for call in recorded_calls(message):
            self._record(call)
        match message:
            case RunStarted() | RunResumed():
                self._ends.begin(message.recipe)
            case CapacityGranted():
                granted = range(message.first_group, message.first_group + message.groups)
                self._granted |= dict.fromkeys(map(str, granted), envelope.time)
            case WeightsPublished():
                self.model = message.location.model
            case EvaluationCompleted():
                self.evaluated_at.append(envelope.time)
            case EpisodeScored():
                self._scored[message.work.episode] = message
            case TrajectoryExported():
                scored = self._scored.pop(message.trajectory.episode, None)
                self._end(message, envelope, scored.work if scored else None, scored.output if scored else "")
            case EpisodeEvaluated():
                self._end(message, envelope, message.work, message.output)
            case EpisodeAbandoned():
                scored = self._scored.pop(message.work.episode, None)
                if self._end(message, envelope, message.work, scored.output if scored else ""):
                    self._abandoned[message.work.episode, message.work.attempt] = envelope.sequence
            case BatchFormed():
                self.trained |= {member.sequence: message.step + 1 for group in message.groups for member in group}
                recipe = self.state.started.recipe if self.state.started else {}
                self.batches[message.step + 1] = RecordedBatch(message, envelope.sequence, recipe)
            case BatchRefused() if (batch := self.batches.get(message.step + 1)) is not None:
                self.batches[message.step + 1] = msgspec.structs.replace(batch, refused=message)
            case TrajectoryDropped():
                self.dropped[message.episode] = message.reason

    def _record(self, call: InteractionRecorded) -> None:
        if (end := self._abandoned.get((call.episode, call.attempt))) is None:
            self._recorded.setdefault(call.episode, []).append(call)
        else:
            ended = self.ended[end]
            self.ended[end] = msgspec.structs.replace(ended, recorded=(*ended.recorded, call))

    def _end(self, event: EpisodeEnd, envelope: Envelope, work: RunEpisode | None, output: str) -> bool:
        """Keep the end of an attempt; returns False if it repeats one."""
        ended = EndedEpisode(event=event, time=envelope.time, sequence=envelope.sequence, work=work, output=output)
        left = event.work.attempts_left if isinstance(event, EpisodeAbandoned) else 0
        if not self._ends.is_first(ended.episode, ended.attempt, left):
            return False
        granted = self._granted.get(ended.group) if ended.purpose == "train" else None
        self.ended[envelope.sequence] = msgspec.structs.replace(
            ended,
            recorded=tuple(self._recorded.pop(ended.episode, ())),
            seconds=None if granted is None else envelope.time - granted,
        )
        return True

    def of(self, episode: str) -> Iterator[EndedEpisode]:
        """Yields the ended attempts of an episode."""
        return (ended for ended in self.ended.values() if ended.episode == episode)

    def outcome_of(self, ended: EndedEpisode) -> str:
        """Returns what became of an attempt: `trained in step 3`, `dropped: stale`, `abandoned: timeout`, `waiting` and others."""
        return describe_outcome(ended.outcome, self.reason_of(ended), self.trained.get(ended.sequence))

    def reason_of(self, ended: EndedEpisode) -> str:
        """Returns the reason why an attempt was abandoned, or its trajectory dropped; empty if it was neither."""
        if isinstance(ended.event, EpisodeAbandoned):
            return ended.event.reason
        return self.dropped.get(ended.episode, "") if ended.trajectory and ended.sequence not in self.trained else ""
