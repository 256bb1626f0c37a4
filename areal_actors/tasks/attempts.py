"""Attempts at the episodes that an actor publishes: the first, retries, and those that the work queue has lost."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from areal_actors.core.values import SamplingParams, Task, Value
from areal_actors.messages import RunEpisode, RunResumed
from areal_actors.messages.rollout import Purpose


class Attempt(Value):
    """The latest attempt at an episode."""

    number: int
    after: int
    """Sequence of the event whose handling published its work."""
    scored: bool = False
    """True if it no longer needs the queue: its end follows from the log."""


def first_attempt(
    group: str,
    member: int,
    task: Task,
    sampling: SamplingParams,
    retries: int,
    purpose: Purpose = "train",
    role: str = "",
) -> RunEpisode:
    """Returns the first attempt at an episode of a group."""
    return RunEpisode(
        episode=f"{group}.{member}",
        group=group,
        attempts_left=retries,
        task=task,
        purpose=purpose,
        sampling=sampling,
        role=role,
    )


def next_attempt(work: RunEpisode) -> RunEpisode:
    """Returns the attempt after this one."""
    return msgspec.structs.replace(work, attempt=work.attempt + 1, attempts_left=work.attempts_left - 1)


class Attempts(msgspec.Struct):
    """Attempts at episodes that have not ended; retries are held while the run stops, and published if it resumes."""

    latest: dict[str, Attempt] = {}
    """Latest attempt of each episode."""
    held: list[RunEpisode] = []
    stopped: bool = False

    def record_start(self, work: RunEpisode, sequence: int) -> RunEpisode:
        """Record an attempt that is published for the event of this sequence."""
        self.latest[work.episode] = Attempt(number=work.attempt, after=sequence)
        return work

    def next_attempts(self, lost: RunEpisode, sequence: int) -> list[RunEpisode]:
        """Returns the next attempt after a lost one, unless the run stops."""
        again = self.record_start(next_attempt(lost), sequence)
        if not self.stopped:
            return [again]
        self.held.append(again)
        return []

    def resumed_attempts(
        self, event: RunResumed, sequence: int, actor: str, first: Callable[[str], RunEpisode]
    ) -> list[RunEpisode]:
        """Returns held attempts, and those whose work was published and is neither queued nor scored.

        Work for events after the last one that the actor acknowledged is left out: handling these again publishes it.
        `first` returns the first attempt at an episode.
        """
        works = {work.episode: work for work in self.held}
        self.held, self.stopped = [], False
        for episode, attempt in self.latest.items() if event.queued is not None else ():
            queued = (event.queued or {}).get(episode) == attempt.number
            if (
                not attempt.scored
                and attempt.after <= event.published.get(actor, 0)
                and not queued
                and episode not in works
            ):
                work = first(episode)
                left = max(work.attempts_left + 1 - attempt.number, 0)
                works[episode] = msgspec.structs.replace(work, attempt=attempt.number, attempts_left=left)
        return [self.record_start(work, sequence) for work in works.values()]

    def record_score(self, work: RunEpisode) -> None:
        """Record that the log has the score of an attempt."""
        latest = self.latest.get(work.episode)
        if latest is not None and latest.number == work.attempt:
            self.latest[work.episode] = msgspec.structs.replace(latest, scored=True)

    def remove_episode(self, episode: str) -> None:
        """Remove an episode that has no further attempt."""
        self.latest.pop(episode, None)
