"""The task source: turns granted capacity into episodes to run, group by group, and lost attempts into new ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from areal_actors.actor import Actor, Emits, Turn, on
from areal_actors.actors.attempts import Attempt, lost_attempts, mark_scored
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
from areal_actors.values import SamplingParams, Task, Value


class Tasks(Protocol):
    """A dataset in its seeded order: the n-th draw is always the same task."""

    def __len__(self) -> int:
        """Draws to an epoch."""
        ...

    def task(self, number: int) -> Task:
        """The n-th draw, counted from 0; epochs follow each other without end."""
        ...


class DrawnState(Value):
    """What a snapshot has."""

    attempts: dict[str, Attempt]
    drawn: int
    stopped: bool
    held: tuple[RunEpisode, ...]


class TaskSource(Actor):
    """Group n is the n-th draw of the dataset, in any run of this seed; its episodes are `n.0` to `n.<group_size - 1>`.

    So where it is in the dataset is a fold over the grants; held-out episodes are the evaluator's. An episode is forgotten when
    it has ended for good (abandoned with no attempt left, in a batch, or dropped), and what is said of it then changes nothing.
    """

    state_type = DrawnState
    state_version = 2

    def __init__(self, tasks: Tasks, *, group_size: int, sampling: SamplingParams, retries: int, prefix: str = "") -> None:
        """`prefix` is put before the names of groups and episodes, where others use the same bus."""
        self.tasks = tasks
        self.group_size = group_size
        self.sampling = sampling
        self.retries = retries
        self.prefix = prefix
        self.attempts: dict[str, Attempt] = {}
        """The latest of each episode that has not ended."""
        self.drawn = 0
        self.stopped = False
        self.held: list[RunEpisode] = []
        """Lost since the run was asked to end; tried again if it goes on."""

    def snapshot(self) -> DrawnState:
        """Where it is in the dataset, and which episodes have not ended."""
        return DrawnState(attempts=dict(self.attempts), drawn=self.drawn, stopped=self.stopped, held=tuple(self.held))

    def restore(self, state: DrawnState) -> None:
        """Go on from there."""
        self.attempts, self.drawn, self.stopped, self.held = dict(state.attempts), state.drawn, state.stopped, list(state.held)

    @on
    async def capacity_granted(self, event: CapacityGranted, turn: Turn) -> Emits[RunEpisode]:
        for work in self.episodes(event, turn.sequence):
            yield work

    def episodes(self, granted: CapacityGranted, sequence: int = 0) -> Iterator[RunEpisode]:
        """The episodes of groups that may start; `sequence` is that of the event."""
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
    async def episode_abandoned(self, event: EpisodeAbandoned, turn: Turn) -> Emits[RunEpisode]:
        for work in self.again(event, turn.sequence):
            if self.stopped:
                self.held.append(work)
            else:
                yield work

    def again(self, abandoned: EpisodeAbandoned, sequence: int = 0) -> Iterator[RunEpisode]:
        """Try again what has attempts left; the same attempt may be reported lost by two actors, and is tried again once."""
        work = abandoned.work
        latest = self.attempts.get(work.episode)
        if work.attempts_left == 0:
            self.ended(work.episode)
        elif latest is not None and work.attempt == latest.number:
            self.attempts[work.episode] = Attempt(number=work.attempt + 1, after=sequence)
            yield msgspec.structs.replace(work, attempt=work.attempt + 1, attempts_left=work.attempts_left - 1)

    @on
    async def episode_scored(self, event: EpisodeScored) -> None:
        mark_scored(self.attempts, event.work)

    @on
    async def batch_formed(self, event: BatchFormed) -> None:
        for group in event.groups:
            for member in group:
                self.ended(member.episode)

    @on
    async def trajectory_dropped(self, event: TrajectoryDropped) -> None:
        self.ended(event.episode)

    def ended(self, episode: str) -> None:
        """There will be no further attempt at it."""
        self.attempts.pop(episode, None)

    @on
    async def run_stopping(self, _: RunStopping) -> None:
        self.stopped = True

    @on
    async def run_resumed(self, event: RunResumed, turn: Turn) -> Emits[RunEpisode]:
        """Publish what was held back, and again what the queue of work has lost."""
        self.stopped = False
        held, self.held = {work.episode: work for work in self.held}, []
        missing = [self._again(*attempt) for attempt in lost_attempts(self.attempts, event, self.kind()) if attempt[0] not in held]
        for work in (*held.values(), *missing):
            self.attempts[work.episode] = Attempt(number=work.attempt, after=turn.sequence)
            yield work

    def _again(self, episode: str, attempt: int) -> RunEpisode:
        return self._work(episode, attempt, self.tasks.task(int(_group_of(episode).removeprefix(self.prefix))))

    def status(self) -> dict[str, float | str]:
        """How many tasks were drawn, and how often that went through the dataset."""
        return {"drawn": self.drawn, "epochs": self.drawn / len(self.tasks)}


def _group_of(episode: str) -> str:
    return episode.rpartition(".")[0]
