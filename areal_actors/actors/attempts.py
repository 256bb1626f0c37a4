"""The attempts that whoever publishes episodes still owes an end: which to publish again when the queue of work has lost them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from areal_actors.messages import RunEpisode, RunResumed
from areal_actors.values import Value


class Attempt(Value):
    """The latest attempt at an episode."""

    number: int
    after: int
    """Sequence of the event that its work was published for."""
    scored: bool = False
    """It no longer needs the queue: what becomes of it follows from the log."""


def mark_scored(attempts: dict[str, Attempt], work: RunEpisode) -> None:
    """Note that the log has the score of an attempt."""
    found = attempts.get(work.episode)
    if found is not None and found.number == work.attempt:
        attempts[work.episode] = msgspec.structs.replace(found, scored=True)


def lost_attempts(attempts: Mapping[str, Attempt], resumed: RunResumed, actor: str) -> Iterator[tuple[str, int]]:
    """Episodes and numbers of attempts whose work was published, and is neither queued nor scored.

    What follows from events after the one that the actor had acknowledged is left out: it is published as these are handled again.
    """
    if resumed.queued is None:
        return
    for episode, attempt in attempts.items():
        if not attempt.scored and attempt.after <= resumed.published.get(actor, 0) and resumed.queued.get(episode) != attempt.number:
            yield episode, attempt.number
