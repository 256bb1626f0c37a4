"""A fold over the log of a run that is forked: where a fork may leave it, and what can be reused after that."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from areal_actors.fork.changes import Reuse
from areal_actors.messages import (
    BatchFormed,
    CapacityGranted,
    CheckpointCommitted,
    CheckpointStaged,
    EpisodeAbandoned,
    EpisodeScored,
    ExamplesDrawn,
    LossEvaluated,
    StepCompleted,
    TrajectoryExported,
    WeightsPublished,
)
from areal_actors.proof.chain import LogChain
from areal_bus.base import Envelope
from areal_bus.message import Event

KINDS: dict[str, type[Event]] = {
    kind.subject: kind
    for kind in (
        *(BatchFormed, CapacityGranted, CheckpointCommitted, CheckpointStaged, EpisodeAbandoned, EpisodeScored),
        *(ExamplesDrawn, LossEvaluated, StepCompleted, TrajectoryExported, WeightsPublished),
    )
}
BEFORE_PREFIX = ("metrics", "episode_log")
"""Actors that write files of the run's folder, which a fork writes from the first event on."""
SESSION_MANAGER = "session_manager"
BEYOND_PREFIX = ("trainer", "checkpointer", SESSION_MANAGER)
"""Actors that have handled the whole beginning of a fork: weights, checkpoint and reused episodes are theirs."""


class RecordedExport(msgspec.Struct, frozen=True):
    """A trajectory that was exported for training."""

    sequence: int
    episode: str
    attempt: int
    group: int
    newest_version: int


class Beginning(msgspec.Struct, frozen=True):
    """Events of the recorded run that a fork begins with."""

    prefix: int
    """Last event that keeps its sequence."""
    copied: tuple[int, ...]
    """Later events, which follow the prefix."""
    reused: int
    """Number of reused episodes among them."""
    head: str
    """Head of the hash chain over the prefix."""
    discarded_below: int
    """Groups with a lower number are not trained."""
    positions: dict[str, int]
    """Last event that each actor has handled, counted as in the fork."""


class RecordedRun:
    """Feed it the events of the log in order, with their bodies."""

    def __init__(self) -> None:
        self.first = 0
        self.last = 0
        self.sequences: dict[str, int] = {}
        """By id of the event."""
        self.answers: list[tuple[int, int, str]] = []
        """Event, the event that it answers, and its sender."""
        self.heads: list[str] = []
        """Head of the hash chain after each event."""
        self.granted: list[tuple[int, int]] = []
        """Event, and number of the first group that is not granted then."""
        self.published: dict[int, int] = {}
        """Event that first published each version."""
        self.inputs: dict[int, int] = {}
        """First batch, or draw of examples, for the step on each version."""
        self.completed: dict[int, int] = {}
        self.staged: dict[int, int] = {}
        self.saved: dict[int, tuple[int, CheckpointCommitted]] = {}
        """Newest event of each checkpoint, by step."""
        self.exports: dict[str, RecordedExport] = {}
        self.scores: dict[tuple[str, int], int] = {}
        self.abandoned: dict[str, list[int]] = {}
        self.losses: list[int] = []
        """Evaluations on examples."""
        self._chain = LogChain()

    def receive(self, envelope: Envelope) -> None:
        """Fold the next event."""
        self._chain.add(envelope)
        self.heads.append(self._chain.head)
        self.first, self.last = self.first or envelope.sequence, envelope.sequence
        self.sequences[envelope.id] = envelope.sequence
        if (cause := self.sequences.get(envelope.cause)) is not None:
            self.answers.append((envelope.sequence, cause, envelope.sender))
        if kind := KINDS.get(envelope.subject):
            self._fold(envelope.sequence, envelope.open(kind))

    def _fold(self, sequence: int, message: Event) -> None:  # noqa: C901 - one line for each kind
        match message:
            case CapacityGranted():
                self.granted.append((sequence, message.first_group + message.groups))
            case WeightsPublished():
                self.published.setdefault(message.weight_version, sequence)
            case BatchFormed() | ExamplesDrawn():
                self.inputs.setdefault(message.step, sequence)
            case StepCompleted():
                self.completed.setdefault(message.step, sequence)
            case CheckpointStaged():
                self.staged[message.step] = sequence
            case CheckpointCommitted():
                self.saved[message.step] = sequence, message
            case EpisodeScored() if message.work.purpose == "train":
                self.scores.setdefault((message.work.episode, message.work.attempt), sequence)
            case EpisodeAbandoned():
                self.abandoned.setdefault(message.work.episode, []).append(sequence)
            case LossEvaluated():
                self.losses.append(sequence)
            case TrajectoryExported(trajectory=trajectory):
                spans = (span for call in trajectory.interactions for span in call.completion.versions)
                newest = max((span.weight_version for span in spans), default=-1)
                export = RecordedExport(sequence, trajectory.episode, trajectory.attempt, int(trajectory.group), newest)
                self.exports.setdefault(trajectory.episode, export)

    def begin_fork(self, step: int, reuse: Reuse, positions: dict[str, int]) -> Beginning:
        """Returns the beginning of a fork at the checkpoint of a step.

        `positions`: last event that each actor of the recorded run has handled.
        """
        prefix = self._end_of_prefix(step, reuse)
        granted = max((below for sequence, below in self.granted if sequence <= prefix), default=0)
        episodes = list(self._reusable_episodes(step, prefix, granted)) if reuse != "nothing" else []
        copied = sorted({*self._later_events(step, prefix), *(event for events in episodes for event in events)})
        return Beginning(
            prefix=prefix,
            copied=tuple(copied),
            reused=len(episodes),
            head=self.heads[prefix - self.first],
            discarded_below=granted if reuse == "nothing" else 0,
            positions=self._positions(prefix, prefix + len(copied), positions),
        )

    def _end_of_prefix(self, step: int, reuse: Reuse) -> int:
        """Returns the last event before the settings of the fork decide anything.

        That is the event before the batch of the next step; the publication of the weights, if the settings decide on
        batches or capacity; the one before it, if they decide on episodes, of which no batch may be formed then.
        """
        if (published := self.published.get(step)) is None or not step:  # learns from examples
            return self.inputs.get(step, self.completed[step] + 1) - 1
        if reuse == "batch":
            return self.inputs.get(step, published + 1) - 1
        return published if reuse == "episodes" else published - 1

    def _later_events(self, step: int, prefix: int) -> Iterator[int]:
        """Yields events after the prefix that follow from it alone.

        The checkpoint, its losses on held-out examples, and the ends of episodes whose score is in the prefix.
        """
        yield from (event for event in (self.staged.get(step, 0), self.saved[step][0]) if event > prefix)
        losses = set(self.losses)
        for event, cause, sender in self.answers:
            if cause <= prefix < event and (event in losses or sender.startswith(SESSION_MANAGER)):
                yield event

    def _reusable_episodes(self, step: int, prefix: int, granted: int) -> Iterator[tuple[int, ...]]:
        """Yields the events of each episode that had begun at the end of the prefix and ended later.

        It was sampled by weights up to those of the step, in its first attempt after the prefix.
        """
        for export in self.exports.values():
            score = self.scores.get((export.episode, export.attempt), 0)
            was_lost = any(prefix < lost < export.sequence for lost in self.abandoned.get(export.episode, ()))
            if export.sequence > prefix and export.group < granted and export.newest_version <= step and not was_lost:
                yield (score, export.sequence) if score > prefix else (export.sequence,)

    def _positions(self, prefix: int, end: int, stored: dict[str, int]) -> dict[str, int]:
        """Returns the position of each actor: before the first event whose answers are not all in the prefix."""
        first_open: dict[str, int] = {}
        for event, cause, sender in self.answers:
            if cause <= prefix < event:
                first_open[sender] = min(cause, first_open.get(sender, cause))
        return {
            actor: 0
            if actor.startswith(BEFORE_PREFIX)
            else end
            if actor.startswith(BEYOND_PREFIX)
            else min(prefix, position, first_open.get(actor, prefix + 1) - 1)
            for actor, position in stored.items()
        }
