"""The task source: turns granted capacity into episodes to run, group by group, and lost attempts into new ones."""

from __future__ import annotations

from typing import Protocol

import msgspec

from areal_actors.actor import Actor, Emits, on
from areal_actors.messages import BatchFormed, CapacityGranted, EpisodeAbandoned, RunEpisode, RunResumed, RunStopping, TrajectoryDropped
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

    attempts: dict[str, int]
    drawn: int
    stopped: bool
    held: tuple[RunEpisode, ...]


class TaskSource(Actor):
    """Group n is the n-th draw of the dataset, in any run of this seed; its episodes are `n.0` to `n.<group_size - 1>`.

    So where it is in the dataset is a fold over the grants; held-out episodes are the evaluator's. An episode is forgotten when
    it has ended for good (abandoned with no attempt left, in a batch, or dropped), and what is said of it then changes nothing.
    """

    state_type = DrawnState

    def __init__(self, tasks: Tasks, *, group_size: int, sampling: SamplingParams, retries: int, prefix: str = "") -> None:
        """`prefix` is put before the names of groups and episodes, where others use the same bus."""
        self.tasks = tasks
        self.group_size = group_size
        self.sampling = sampling
        self.retries = retries
        self.prefix = prefix
        self.attempts: dict[str, int] = {}
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
    async def capacity_granted(self, event: CapacityGranted) -> Emits[RunEpisode]:
        for number in range(event.first_group, event.first_group + event.groups):
            task = self.tasks.task(number)
            self.drawn = max(self.drawn, number + 1)
            for member in range(self.group_size):
                group = f"{self.prefix}{number}"
                self.attempts[f"{group}.{member}"] = 1
                yield RunEpisode(
                    episode=f"{group}.{member}",
                    group=group,
                    attempts_left=self.retries,
                    task=task,
                    sampling=self.sampling,
                )

    @on
    async def episode_abandoned(self, event: EpisodeAbandoned) -> Emits[RunEpisode]:
        """Try again what has attempts left; the same attempt may be reported lost by two actors, and is tried again once."""
        work = event.work
        if work.attempts_left == 0:
            self.ended(work.episode)
        elif work.attempt == self.attempts.get(work.episode):
            self.attempts[work.episode] = work.attempt + 1
            again = msgspec.structs.replace(work, attempt=work.attempt + 1, attempts_left=work.attempts_left - 1)
            if self.stopped:
                self.held.append(again)
            else:
                yield again

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
    async def run_resumed(self, _: RunResumed) -> Emits[RunEpisode]:
        self.stopped = False
        held, self.held = self.held, []
        for work in held:
            yield work

    def status(self) -> dict[str, float | str]:
        """How many tasks were drawn, and how often that went through the dataset."""
        return {"drawn": self.drawn, "epochs": self.drawn / len(self.tasks)}
