"""How far the answers of each actor reach in a log: from where an actor goes on when the log has lost its end.

An actor acknowledges an event when its answers are in the log. When the log is cut, answers may be gone to events that were
acknowledged, and nobody would give them again: so every actor is given again what may have lost an answer. Ids follow from
what is handled, and what the log still has is kept once.
"""

from __future__ import annotations

from areal_actors.messages import CheckpointSaved, CheckpointWritten, RunFinished, RunResumed, RunStarted
from bus.base import Envelope

SAY_NOTHING = ("metrics", "episode_log", "task_source")
"""Actors whose handling leaves nothing in the log that could be lost; episodes to run are in the queue of work."""
SAVES = "checkpointer"
"""Answers with orders to save, of which `CheckpointWritten` is the proof: what comes before the last one needs no answer."""


class Answers:
    """A fold over the good part of a log."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        """Sequence of each event, by id."""
        self.answered: dict[str, int] = {}
        """Of the last event that each actor has answered."""
        self.oldest = 0.0
        """When the first event happened; 0 if there is none."""
        self.newest = 0.0
        """When the latest event happened."""
        self.written = 0
        """Sequence of the last checkpoint that the trainer has written."""
        self.saved: CheckpointSaved | None = None
        """The last checkpoint that the log knows."""
        self.ended = False
        """Whether the last life of the run came to its end, and whatever had been published is in the log."""

    def take(self, envelope: Envelope) -> None:
        """The next event."""
        self.oldest = self.oldest or envelope.time
        self.newest = max(self.newest, envelope.time)
        self.places[envelope.id] = envelope.sequence
        if (cause := self.places.get(envelope.cause)) is not None:
            self.answered[envelope.sender] = max(cause, self.answered.get(envelope.sender, 0))
        if envelope.subject == CheckpointWritten.subject:
            self.written = envelope.sequence
        if envelope.subject in (RunStarted.subject, RunResumed.subject, RunFinished.subject):
            self.ended = envelope.subject == RunFinished.subject
        elif envelope.subject == CheckpointSaved.subject and not envelope.claim:
            self.saved = envelope.open(CheckpointSaved)

    def position(self, actor: str, before: int, end: int) -> int:
        """From where an actor that stood at `before` goes on, so that no answer is missing."""
        if actor.startswith(SAY_NOTHING):
            return min(before, end)
        answered = self.written if actor.startswith(SAVES) else self.answered.get(actor, 0)
        return min(before, end, max(answered - 1, 0))
