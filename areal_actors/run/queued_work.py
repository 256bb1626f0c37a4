"""Reads the queued episodes of a run's work queue.

A server silently drops a damaged item of the queue, so the actors that publish episodes receive the list of queued ones.
"""

from __future__ import annotations

import structlog

from areal_actors.messages import EvaluateEpisode, RunEpisode, ScoreEpisode
from bus.claims import check_out
from bus.errors import BusError
from bus.log_rewrite import messages_of
from bus.nats_reader import unpack
from bus.nats_streams import Streams

KINDS_OF_WORK: dict[str, type[RunEpisode | EvaluateEpisode | ScoreEpisode]] = {
    kind.subject: kind for kind in (RunEpisode, EvaluateEpisode, ScoreEpisode)
}
EPISODE_PUBLISHERS = ("task_source", "evaluator")
"""Kinds of the actors that publish episodes to be run (`tasks/attempts.py`)."""

logger = structlog.get_logger(__name__)


async def queued_attempts(streams: Streams) -> dict[str, int]:
    """Returns the latest attempt of each episode that is queued or in flight, to be run or scored."""
    found: dict[str, int] = {}
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
            found[work.episode] = max(work.attempt, found.get(work.episode, 0))
    return found
