"""Unfinished attempts at episodes, and which of them to publish again when the work queue has lost them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from areal_actors.core.values import Value
from areal_actors.messages import RunEpisode, RunResumed


class Attempt(Value):
    """The latest attempt at an episode."""

    number: int
    after: int
    """Sequence of the event whose handling published its work."""
    scored: bool = False
    """True if it no longer needs the queue: its end follows from the log."""


def mark_scored(attempts: dict[str, Attempt], work: RunEpisode) -> None:
    """Record that the log has the score of an attempt."""
    found = attempts.get(work.episode)
    if found is not None and found.number == work.attempt:
        attempts[work.episode] = msgspec.structs.replace(found, scored=True)


def lost_attempts(attempts: Mapping[str, Attempt], resumed: RunResumed, actor: str) -> Iterator[tuple[str, int]]:
    """Episodes and numbers of attempts whose work was published, and is neither queued nor scored.

    Work for events after the last one that the actor acknowledged is left out: handling these again publishes it.
    """
    if resumed.queued is None:
        return
    for episode, attempt in attempts.items():
        if not attempt.scored and attempt.after <= resumed.published.get(actor, 0) and resumed.queued.get(episode) != attempt.number:
            yield episode, attempt.number
