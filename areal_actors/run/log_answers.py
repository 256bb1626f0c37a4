"""Finds the last answered event of each actor: the position to resume from when the end of the log is lost.

An actor acknowledges an event once its answers are in the log. When the log is cut, answers to acknowledged events may be lost,
and no actor would repeat them: so events whose answers may be lost are redelivered. Message ids are deterministic, so answers
that are still in the log are deduplicated.
"""

from __future__ import annotations

from areal_actors.messages import CheckpointCommitted, CheckpointStaged, RunFinished, RunResumed, RunStarted
from bus.base import Envelope

WITHOUT_ANSWERS = ("metrics", "episode_log", "task_source")
"""Actors that put no answers into the log; episodes to run are in the work queue."""
CHECKPOINTER = "checkpointer"
"""Answers with orders to save, confirmed by `CheckpointStaged`: events before the last one need no answer."""


class AnsweredEvents:
    """A fold over the readable part of a log."""

    def __init__(self) -> None:
        self.sequences: dict[str, int] = {}
        """Sequence of each event, by id."""
        self.answered: dict[str, int] = {}
        """Sequence of the last event that each actor has answered."""
        self.oldest = 0.0
        """Time of the first event; 0 if there is none."""
        self.newest = 0.0
        """Time of the latest event."""
        self.written = 0
        """Sequence of the last checkpoint that the trainer has written."""
        self.saved: CheckpointCommitted | None = None
        """The last checkpoint saved according to the log."""
        self.ended = False
        """True if the last launch of the run ended normally, so that everything published is in the log."""

    def receive(self, envelope: Envelope) -> None:
        """Fold the next event."""
        self.oldest = self.oldest or envelope.time
        self.newest = max(self.newest, envelope.time)
        self.sequences[envelope.id] = envelope.sequence
        if (cause := self.sequences.get(envelope.cause)) is not None:
            self.answered[envelope.sender] = max(cause, self.answered.get(envelope.sender, 0))
        if envelope.subject == CheckpointStaged.subject:
            self.written = envelope.sequence
        if envelope.subject in (RunStarted.subject, RunResumed.subject, RunFinished.subject):
            self.ended = envelope.subject == RunFinished.subject
        elif envelope.subject == CheckpointCommitted.subject and not envelope.claim:
            self.saved = envelope.open(CheckpointCommitted)

    def position(self, actor: str, before: int, end: int) -> int:
        """Returns the position from which an actor that stood at `before` resumes, so that no answer is missing."""
        if actor.startswith(WITHOUT_ANSWERS):
            return min(before, end)
        answered = self.written if actor.startswith(CHECKPOINTER) else self.answered.get(actor, 0)
        return min(before, end, max(answered - 1, 0))
