"""The task source: draws tasks for granted groups, publishes their episodes, and retries lost attempts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from areal_actors.core.values import SamplingParams, Task, Value
from areal_actors.messages import (
    BatchFormed,
    CapacityGranted,
    EpisodeAbandoned,
    EpisodeScored,
    RunEpisode,
    RunResumed,
    RunStopping,
    TrajectoryDropped,
)
from areal_actors.runtime.actor import Actor, Context, on
from areal_actors.tasks.attempts import Attempt, lost_attempts, mark_scored


class TaskSequence(Protocol):
    """A dataset in seeded order: the n-th draw is always the same task."""

    def __len__(self) -> int:
        """Number of draws per epoch."""
        ...

    def task(self, number: int) -> Task:
        """Returns the n-th draw, counted from 0, over any number of epochs."""
        ...


class DrawnState(Value):
    """Snapshot of a task source."""

    attempts: dict[str, Attempt]
    drawn: int
    stopped: bool
    held: tuple[RunEpisode, ...]


class TaskSource(Actor):
    """Group n is the n-th draw of the dataset, in any run of this seed; its episodes are `n.0` to `n.<group_size - 1>`.

    So the position in the dataset is a fold over the grants; held-out episodes belong to the evaluator. An episode is removed when
    it has ended (abandoned after all attempts, in a batch, or dropped); later events about it are ignored.
    """

    state_type = DrawnState
    state_version = 2

    def __init__(self, tasks: TaskSequence, *, group_size: int, sampling: SamplingParams, retries: int, prefix: str = "") -> None:
        """`prefix` is prepended to names of groups and episodes, if the bus is shared."""
        self.tasks = tasks
        self.group_size = group_size
        self.sampling = sampling
        self.retries = retries
        self.prefix = prefix
        self.attempts: dict[str, Attempt] = {}
        """Latest attempt of each episode that has not ended."""
        self.drawn = 0
        self.stopped = False
        self.held: list[RunEpisode] = []
        """Attempts lost after the run was asked to stop; retried if it resumes."""

    def snapshot(self) -> DrawnState:
        """Position in the dataset, and open episodes."""
        return DrawnState(attempts=dict(self.attempts), drawn=self.drawn, stopped=self.stopped, held=tuple(self.held))

    def restore(self, state: DrawnState) -> None:
        """Continue from this state."""
        self.attempts, self.drawn, self.stopped, self.held = dict(state.attempts), state.drawn, state.stopped, list(state.held)

    @on
    def capacity_granted(self, event: CapacityGranted, context: Context) -> Iterator[RunEpisode]:
        yield from self.episodes(event, context.sequence)

    def episodes(self, granted: CapacityGranted, sequence: int = 0) -> Iterator[RunEpisode]:
        """Yields the episodes of granted groups; `sequence` is that of the event."""
        for number in range(granted.first_group, granted.first_group + granted.groups):
            task = self.tasks.task(number)
            self.drawn = max(self.drawn, number + 1)
            for member in range(self.group_size):
                episode = f"{self.prefix}{number}.{member}"
                self.attempts[episode] = Attempt(number=1, after=sequence)
                yield self._work(episode, 1, task)

    def _work(self, episode: str, attempt: int, task: Task) -> RunEpisode:
        return RunEpisode(
            episode=episode,
            group=_group_of(episode),
            attempt=attempt,
            attempts_left=max(self.retries + 1 - attempt, 0),
            task=task,
            sampling=self.sampling,
        )

    @on
    def episode_abandoned(self, event: EpisodeAbandoned, context: Context) -> Iterator[RunEpisode]:
        for work in self.again(event, context.sequence):
            if self.stopped:
                self.held.append(work)
            else:
                yield work

    def again(self, abandoned: EpisodeAbandoned, sequence: int = 0) -> Iterator[RunEpisode]:
        """Yields a retry if attempts are left; an attempt reported lost by two actors is retried once."""
        work = abandoned.work
        latest = self.attempts.get(work.episode)
        if work.attempts_left == 0:
            self.ended(work.episode)
        elif latest is not None and work.attempt == latest.number:
            self.attempts[work.episode] = Attempt(number=work.attempt + 1, after=sequence)
            yield msgspec.structs.replace(work, attempt=work.attempt + 1, attempts_left=work.attempts_left - 1)

    @on
    def episode_scored(self, event: EpisodeScored) -> None:
        mark_scored(self.attempts, event.work)

    @on
    def batch_formed(self, event: BatchFormed) -> None:
        for group in event.groups:
            for member in group:
                self.ended(member.episode)

    @on
    def trajectory_dropped(self, event: TrajectoryDropped) -> None:
        self.ended(event.episode)

    def ended(self, episode: str) -> None:
        """Remove an episode that has no further attempt."""
        self.attempts.pop(episode, None)

    @on
    def run_stopping(self, _: RunStopping) -> None:
        self.stopped = True

    @on
    def run_resumed(self, event: RunResumed, context: Context) -> Iterator[RunEpisode]:
        """Publish held attempts, and again those that the work queue has lost."""
        self.stopped = False
        held, self.held = {work.episode: work for work in self.held}, []
        missing = [self._again(*attempt) for attempt in lost_attempts(self.attempts, event, self.kind()) if attempt[0] not in held]
        for work in (*held.values(), *missing):
            self.attempts[work.episode] = Attempt(number=work.attempt, after=context.sequence)
            yield work

    def _again(self, episode: str, attempt: int) -> RunEpisode:
        return self._work(episode, attempt, self.tasks.task(int(_group_of(episode).removeprefix(self.prefix))))

    def status(self) -> dict[str, float | str]:
        """Number of tasks drawn, and of epochs."""
        return {"drawn": self.drawn, "epochs": self.drawn / len(self.tasks)}


def _group_of(episode: str) -> str:
    return episode.rpartition(".")[0]
