"""The task source: draws tasks for granted groups, publishes their episodes, and retries lost attempts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import msgspec

from areal_actors.core.values import SamplingParams, Task, Value
from areal_actors.messages import (
    BatchFormed,
    CapacityGranted,
    EpisodeAbandoned,
    EpisodeScored,
    PoolsMeasured,
    RunEpisode,
    RunForked,
    RunResumed,
    RunStopping,
    SourcesChanged,
    TrajectoryDropped,
)
from areal_actors.messages.episode_ends import FORKED
from areal_actors.runtime.actor import Actor, Context, on
from areal_actors.tasks.attempts import Attempt, Attempts, first_attempt
from areal_actors.tasks.curriculum.schedule import Schedule, ScheduleState
from areal_actors.tasks.roles import read_role

OTHER_SETTINGS = "it was started with the settings of the run before the fork"
SURPLUS = "the last batch was formed before its group was complete (staleness_gate.surplus_groups)"


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
    surplus: bool = False
    schedule: ScheduleState | None = None


class TaskSource(Actor):
    """Group n is the n-th draw of the dataset, in any run of this seed; its episodes are `n.0` to `n.<group_size - 1>`.

    So the position in the dataset is a fold over the grants; held-out episodes belong to the evaluator. An episode is
    removed when it has ended (abandoned after all attempts, in a batch, or dropped); later events about it are ignored.
    Where more groups are started than the last steps need, those that still run when the last batch is formed, and
    those of later grants, are abandoned as `surplus`.
    """

    state_type = DrawnState
    state_version = 2

    def __init__(
        self,
        tasks: TaskSequence,
        *,
        group_size: int,
        sampling: SamplingParams,
        retries: int,
        surplus_after: int | None = None,
        sampling_by_source: Mapping[str, SamplingParams] | None = None,
        role_field: str = "",
    ) -> None:
        """`surplus_after`: step of the last batch, counted from 0, after which episodes that still run are surplus.

        None if none are. `sampling_by_source`: sampling parameters of the sources of a mixture. `role_field`: field of
        tasks with the role of their episodes; empty if they have none.
        """
        self.tasks = tasks
        self.schedule = tasks if isinstance(tasks, Schedule) else None
        """Draws that follow from scores, if they do."""
        self.surplus_after = surplus_after
        self.group_size = group_size
        self.sampling = sampling
        self.sampling_by_source = sampling_by_source or {}
        self.retries = retries
        self.role_field = role_field
        self.attempts = Attempts()
        self.drawn = 0
        self.surplus = False
        """True once the last batch is formed: further episodes are surplus."""

    def snapshot(self) -> DrawnState:
        """Position in the dataset, and open episodes."""
        attempts = self.attempts
        return DrawnState(
            attempts=dict(attempts.latest),
            drawn=self.drawn,
            stopped=attempts.stopped,
            held=tuple(attempts.held),
            surplus=self.surplus,
            schedule=self.schedule.snapshot() if self.schedule is not None else None,
        )

    def restore(self, state: DrawnState) -> None:
        """Continue from this state."""
        self.attempts, self.drawn = Attempts(dict(state.attempts), list(state.held), state.stopped), state.drawn
        self.surplus = state.surplus
        if self.schedule is not None and state.schedule is not None:
            self.schedule.restore(state.schedule, state.drawn)

    @on
    def capacity_granted(self, event: CapacityGranted, context: Context) -> Iterator[RunEpisode | EpisodeAbandoned]:
        for number in range(event.first_group, event.first_group + event.groups):
            task = self.tasks.task(number)
            self.drawn = max(self.drawn, number + 1)
            for member in range(self.group_size):
                work = self._work(number, member, task)
                yield _surplus(work) if self.surplus else self.attempts.record_start(work, context.sequence)

    @on
    def episode_abandoned(
        self, event: EpisodeAbandoned, context: Context
    ) -> Iterator[RunEpisode | EpisodeAbandoned | SourcesChanged]:
        """Retry while attempts are left; an attempt reported lost by two actors is retried once."""
        work, latest = event.work, self.attempts.latest.get(event.work.episode)
        if work.attempts_left == 0:
            if latest is not None and not latest.scored:
                yield from self._measure(work, None)
            self.attempts.remove_episode(work.episode)
        elif latest is not None and work.attempt == latest.number:
            yield from [_surplus(work)] if self.surplus else self.attempts.next_attempts(work, context.sequence)

    @on
    def episode_scored(self, event: EpisodeScored) -> Iterator[SourcesChanged]:
        latest = self.attempts.latest.get(event.work.episode)
        is_first = latest is not None and latest.number == event.work.attempt and not latest.scored
        self.attempts.record_score(event.work)
        if is_first:
            by_call = list(event.rewards.values())
            last = by_call[-1] if by_call else None
            yield from self._measure(event.work, last if event.reward is None else event.reward)

    def _measure(self, work: RunEpisode, reward: float | None) -> Iterator[SourcesChanged]:
        """Pass the end of an episode to the schedule, if draws follow from scores."""
        if self.schedule is None:
            return
        if (weights := self.schedule.end_episode(int(work.group), work.episode, reward)) is not None:
            yield SourcesChanged(first_group=self.schedule.drawn, weights=weights, source=work.task.source)

    @on
    def batch_formed(self, event: BatchFormed) -> Iterator[EpisodeAbandoned | PoolsMeasured]:
        if self.schedule is not None and self.schedule.pools:
            returned = sum(pools.state.returned for pools in self.schedule.pools.values())
            yield PoolsMeasured(step=event.step + 1, pools=self.schedule.sizes(), returned=returned)
        for group in event.groups:
            for member in group:
                self.attempts.remove_episode(member.episode)
        if self.schedule is not None:
            self.schedule.forget_groups({int(episode.partition(".")[0]) for episode in self.attempts.latest})
        if event.step == self.surplus_after:
            self.surplus = True
            for episode, attempt in list(self.attempts.latest.items()):
                if not attempt.scored:
                    yield _surplus(msgspec.structs.replace(self._first_attempt(episode), attempt=attempt.number))

    @on
    def trajectory_dropped(self, event: TrajectoryDropped) -> None:
        self.attempts.remove_episode(event.episode)

    @on
    def run_forked(self, event: RunForked) -> Iterator[EpisodeAbandoned]:
        """Abandon episodes that have the settings of the run before the fork, in place of running them again."""
        for episode, attempt in list(self.attempts.latest.items()):
            if int(episode.partition(".")[0]) < event.discarded_below and not attempt.scored:
                work = msgspec.structs.replace(self._first_attempt(episode), attempt=attempt.number, attempts_left=0)
                self.attempts.remove_episode(episode)
                yield EpisodeAbandoned(work=work, reason=FORKED, detail=OTHER_SETTINGS)

    @on
    def run_stopping(self, _: RunStopping) -> None:
        self.attempts.stopped = True

    @on
    def run_resumed(self, event: RunResumed, context: Context) -> Iterator[RunEpisode]:
        """Publish held attempts, and again those that the work queue has lost."""
        yield from self.attempts.resumed_attempts(event, context.sequence, self.kind(), self._first_attempt)

    def _first_attempt(self, episode: str) -> RunEpisode:
        group, _, member = episode.partition(".")
        return self._work(int(group), int(member), self.tasks.task(int(group)))

    def _work(self, number: int, member: int, task: Task) -> RunEpisode:
        sampling = self.sampling_by_source.get(task.source, self.sampling)
        role = read_role(task.data, self.role_field) if self.role_field else ""
        return first_attempt(str(number), member, task, sampling, self.retries, role=role)

    def status(self) -> dict[str, float | str]:
        """Number of tasks drawn, and of epochs."""
        return {"drawn": self.drawn, "epochs": self.drawn / len(self.tasks)}


def _surplus(work: RunEpisode) -> EpisodeAbandoned:
    return EpisodeAbandoned(work=msgspec.structs.replace(work, attempts_left=0), reason="surplus", detail=SURPLUS)
