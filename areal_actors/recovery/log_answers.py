"""Reads the rest of a damaged log and work queue: the last answered event of each actor, and the queued episodes.

An actor acknowledges an event once its answers are in the log. When the log is cut, answers to acknowledged events may
be lost, and no actor would repeat them: so events whose answers may be lost are redelivered. Message ids are
deterministic, so answers that are still in the log are deduplicated. A server silently drops a damaged item of the
queue, so the actors that publish episodes receive the list of queued ones.
"""

from __future__ import annotations

from collections import deque

import structlog

from areal_actors.messages import (
    CheckpointCommitted,
    CheckpointStaged,
    EvaluateEpisode,
    RunEpisode,
    RunFinished,
    RunResumed,
    RunStarted,
    ScoreEpisode,
)
from areal_bus.base import Envelope
from areal_bus.claims import check_out
from areal_bus.errors import BusError
from areal_bus.log_rewrite import messages_of
from areal_bus.nats_streams import Streams
from areal_bus.payload import unpack

WITHOUT_ANSWERS = ("metrics", "episode_log", "task_source")
"""Actors that put no answers into the log; episodes to run are in the work queue."""
CHECKPOINTER = "checkpointer"
"""Answers with orders to save, confirmed by `CheckpointStaged`: events before the last one need no answer."""

KINDS_OF_WORK: dict[str, type[RunEpisode | EvaluateEpisode | ScoreEpisode]] = {
    kind.subject: kind for kind in (RunEpisode, EvaluateEpisode, ScoreEpisode)
}
RECENT_EVENTS = 1_000
"""Last events of the log whose times are compared: a clock may have been ahead for some of them."""
EPISODE_PUBLISHERS = ("task_source", "evaluator")
"""Kinds of the actors that publish episodes to be run (`tasks/attempts.py`)."""

logger = structlog.get_logger(__name__)


class AnsweredEvents:
    """A fold over the readable part of a log."""

    def __init__(self) -> None:
        self.sequences: dict[str, int] = {}
        """Sequence of each event, by id."""
        self.answered: dict[str, int] = {}
        """Sequence of the last event that each actor has answered."""
        self.oldest = 0.0
        """Earliest time of an event; 0 if there is none."""
        self._recent: deque[float] = deque(maxlen=RECENT_EVENTS)
        self.written = 0
        """Sequence of the last checkpoint that the trainer has written."""
        self.saved: CheckpointCommitted | None = None
        """The last checkpoint saved according to the log."""
        self.ended = False
        """True if the last launch of the run ended normally, so that everything published is in the log."""

    def receive(self, envelope: Envelope) -> None:
        """Fold the next event."""
        self.oldest = min(self.oldest or envelope.time, envelope.time)
        self._recent.append(envelope.time)
        self.sequences[envelope.id] = envelope.sequence
        if (cause := self.sequences.get(envelope.cause)) is not None:
            self.answered[envelope.sender] = max(cause, self.answered.get(envelope.sender, 0))
        if envelope.subject == CheckpointStaged.subject:
            self.written = envelope.sequence
        if envelope.subject in (RunStarted.subject, RunResumed.subject, RunFinished.subject):
            self.ended = envelope.subject == RunFinished.subject
        elif envelope.subject == CheckpointCommitted.subject and not envelope.claim:
            self.saved = envelope.open(CheckpointCommitted)

    def seconds_since_end(self, now: float) -> float:
        """Return the seconds since the last events of the log.

        0 if they lie in the future, written while a clock was ahead.
        """
        return max(now - min(self._recent, default=now), 0.0)

    def seconds_since_beginning(self, now: float) -> float:
        """Return the seconds since the earliest event of the log; 0 if all lie in the future."""
        return max(now - (self.oldest or now), 0.0)

    def position(self, actor: str, before: int, end: int) -> int:
        """Returns the position from which an actor that stood at `before` resumes, so that no answer is missing."""
        if actor.startswith(WITHOUT_ANSWERS):
            return min(before, end)
        answered = self.written if actor.startswith(CHECKPOINTER) else self.answered.get(actor, 0)
        return min(before, end, max(answered - 1, 0))


async def queued_attempts(streams: Streams) -> dict[str, int]:
    """Returns the latest attempt of each episode that is queued or in flight, to be run or scored."""
    attempts: dict[str, int] = {}
    async for message in messages_of(streams, streams.queue):
        try:
            envelope = check_out(unpack(bytes(message.data), where="a work item"), streams.blobs)
            kind = KINDS_OF_WORK.get(envelope.subject)
            item = envelope.open(kind) if kind else None
        except BusError as error:
            logger.warning("an item of the work queue cannot be read; its episode is published again", error=str(error))
            continue
        if item is not None:
            work = item if isinstance(item, RunEpisode) else item.work
            attempts[work.episode] = max(work.attempt, attempts.get(work.episode, 0))
    return attempts
