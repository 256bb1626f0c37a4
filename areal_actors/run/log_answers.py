"""How far the answers of each actor reach in a log: from where an actor goes on when the log has lost its end.

An actor acknowledges an event when its answers are in the log. When the log is cut, answers may be gone to events that were
acknowledged, and nobody would give them again: so every actor is given again what may have lost an answer. Ids follow from
what is handled, and what the log still has is kept once.
"""

from __future__ import annotations

from bisect import bisect_left

from areal_actors.messages import CheckpointSaved, CheckpointWritten, RunFinished, RunResumed, RunStarted
from bus.base import Envelope

MARGIN_SECONDS = 60.0
"""Longer than anybody takes to answer an event with episodes, and many times what a power failure can take of the log."""
SAY_NOTHING = ("metrics", "episode_log")
"""Actors whose handling leaves nothing in the log that could be lost."""
SAY_EPISODES = ("task_source", "evaluator")
"""Actors that answer with episodes to run, which the log has only when they have ended; one that has ended is not run again."""
SAVES = "checkpointer"
"""Answers with orders to save, of which `CheckpointWritten` is the proof: what comes before the last one needs no answer."""


class Answers:
    """A fold over the good part of a log."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        """Sequence of each event, by id."""
        self.answered: dict[str, int] = {}
        """Of the last event that each actor has answered."""
        self.times: list[float] = []
        """When the events happened, of each the latest so far."""
        self.first = 1
        """Sequence of the first event."""
        self.written = 0
        """Sequence of the last checkpoint that the trainer has written."""
        self.saved: CheckpointSaved | None = None
        """The last checkpoint that the log knows."""
        self.ended = False
        """Whether the last life of the run came to its end, and whatever had been published is in the log."""

    def take(self, envelope: Envelope) -> None:
        """The next event."""
        if not self.times:
            self.first = envelope.sequence
        self.times.append(max(envelope.time, self.times[-1] if self.times else 0.0))
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
        if actor.startswith(SAY_EPISODES):
            return min(before, end, self._before_the_margin())
        answered = self.written if actor.startswith(SAVES) else self.answered.get(actor, 0)
        return min(before, end, max(answered - 1, 0))

    def _before_the_margin(self) -> int:
        """Sequence of the last event that happened well before the newest."""
        if not self.times:
            return 0
        return self.first + bisect_left(self.times, self.times[-1] - MARGIN_SECONDS) - 1
