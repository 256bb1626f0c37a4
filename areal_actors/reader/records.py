"""Ended episodes of a run, and its batches: rows of its history, with the events that have their texts and tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec

from areal_actors.core.values import Interaction, Trajectory
from areal_actors.history.database import History
from areal_actors.history.episode_rows import AttemptRecord, CallRecord
from areal_actors.history.run_events import notice_events
from areal_actors.messages import (
    BatchFormed,
    BatchRefused,
    ConversationKept,
    EpisodeAbandoned,
    EpisodeEvaluated,
    EpisodeScored,
    RunEpisode,
    TrajectoryExported,
)
from areal_actors.messages.episode_ends import SURPLUS, EpisodeEnd, Outcome, outcome_of
from areal_bus.base import Envelope

ENDS: dict[str, type[EpisodeEnd]] = {
    kind.subject: kind for kind in (EpisodeAbandoned, EpisodeEvaluated, TrajectoryExported)
}
ENDED = "SELECT * FROM attempt WHERE ended IN (SELECT value FROM json_each(?)) ORDER BY ended"
CALLS = "SELECT * FROM call WHERE attempt_id IN (SELECT value FROM json_each(?)) ORDER BY attempt_id, number"


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
    recorded: tuple[CallRecord, ...] = ()
    """Completed model calls of the attempt."""
    seconds: float | None = None
    """Time since the group was granted; None in evaluation."""
    step: int | None = None
    """Step, counted from 1, that trained it."""
    reason: str = ""
    """Reason why it was abandoned, or its trajectory dropped; empty if it was neither."""
    conversation: ConversationKept | None = None
    """Calls of an attempt without a trajectory, if the log has them."""
    id: int = 0
    """`attempt.id` of the history."""

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

    def describe(self) -> str:
        """Returns what became of it, as text.

        It is `trained in step 3`, `dropped: stale`, `abandoned: timeout`, `rewarded, not trained` or another.
        """
        return describe_outcome(self.outcome, self.reason, self.step)

    @property
    def trajectory(self) -> Trajectory | None:
        """The trajectory, if it was exported."""
        return self.event.trajectory if isinstance(self.event, TrajectoryExported) else None

    @property
    def interactions(self) -> tuple[Interaction, ...]:
        """The calls with tokens that the log has: of its trajectory, or of its conversation, which nothing trains."""
        with_tokens = self.trajectory or self.conversation
        return with_tokens.interactions if with_tokens else ()


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
    """Returns what became of an ended attempt, as text.

    It is `trained in step 3`, `dropped: stale`, `abandoned: timeout`, `unrewarded` or another; `rewarded, not trained`
    if it waits for a batch, the run ended before one, or the model was only served. `reason` is that of an abandoned
    attempt, or of a dropped trajectory; `step` has trained it.
    """
    if outcome == "abandoned":
        return f"abandoned: {reason}"
    if outcome == SURPLUS and reason:
        return reason
    if outcome != "exported":
        return outcome
    if step:
        return f"trained in step {step}"
    return SURPLUS if reason == SURPLUS else f"dropped: {reason}" if reason else "rewarded, not trained"


@dataclass(eq=False)
class Records:
    """Ended attempts at episodes, and batches, whose events were read."""

    ended: dict[int, EndedEpisode] = field(default_factory=dict)
    """By position in the log."""
    batches: dict[int, RecordedBatch] = field(default_factory=dict)
    """Batch of each step, counted from 1."""

    @classmethod
    def of(cls, history: History, envelopes: Iterable[Envelope], recipe: dict[str, Any]) -> Self:
        """Returns the records of these events, as the history describes them.

        `recipe` is that of a log whose start was trimmed.

        Raises:
            CorruptMessage: an envelope is damaged.
        """
        events = {envelope.sequence: envelope for envelope in envelopes}
        calls: dict[int, list[CallRecord]] = {}
        granted = {str(number): at for number, at in history.query("SELECT number, granted_at FROM group_")}
        rows = [AttemptRecord(**row) for row in history.records(ENDED, json.dumps(list(events)))]
        for record in history.records(CALLS, json.dumps([row.id for row in rows])):
            calls.setdefault(record["attempt_id"], []).append(CallRecord(**record))
        ended = (_read_ended(row, events, tuple(calls.get(row.id, ())), granted) for row in rows)
        return cls({attempt.sequence: attempt for attempt in ended}, dict(_read_batches(history, events, recipe)))

    def attempts(self, episode: str) -> Iterator[EndedEpisode]:
        """Yields the ended attempts at an episode."""
        return (ended for ended in self.ended.values() if ended.episode == episode)


def _read_ended(
    row: AttemptRecord, events: Mapping[int, Envelope], calls: tuple[CallRecord, ...], granted: Mapping[str, float]
) -> EndedEpisode:
    assert row.ended is not None
    assert row.ended_at is not None
    event = events[row.ended].open(ENDS[events[row.ended].subject])
    scored = events[row.scored].open(EpisodeScored) if row.scored is not None and row.scored in events else None
    output = event.output if isinstance(event, EpisodeEvaluated) else scored.output if scored else ""
    kept = events.get(row.conversation) if row.conversation is not None else None
    began = granted.get(row.group_) if row.purpose == "train" else None
    return EndedEpisode(
        event=event,
        time=row.ended_at,
        sequence=row.ended,
        work=(scored.work if scored else None) if isinstance(event, TrajectoryExported) else event.work,
        output=output,
        recorded=calls,
        seconds=None if began is None else row.ended_at - began,
        step=row.step,
        reason=row.reason or (row.drop_reason if row.step is None else ""),
        conversation=kept.open(ConversationKept) if kept else None,
        id=row.id,
    )


def _read_batches(
    history: History, events: Mapping[int, Envelope], recipe: dict[str, Any]
) -> Iterator[tuple[int, RecordedBatch]]:
    """Yields the batches that were read with their steps, in order."""
    launches = history.query("SELECT started, recipe FROM run ORDER BY started DESC")
    refusals = {refused.step + 1: refused for *_, refused in notice_events(history, BatchRefused)}
    for formed, step in history.query("SELECT formed, step FROM batch ORDER BY formed"):
        if formed in events:
            launch = next((launch for started, launch in launches if started < formed), None)
            own = msgspec.json.decode(launch) if launch else recipe
            yield step, RecordedBatch(events[formed].open(BatchFormed), formed, own, refusals.get(step))
