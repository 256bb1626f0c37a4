"""Draws that follow from measured success rates: a sequence of tasks that is a fold over grants and scores.

With `[task.curriculum]` the task of a draw is chosen by difficulty; with `until` a source is no longer drawn once its
groups reach a success rate. All of it follows from the seed and the log, so a restarted task source draws the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import deepcopy
from typing import Protocol

import msgspec

from areal_actors.core.curriculum_settings import CurriculumSettings
from areal_actors.core.values import Task
from areal_actors.tasks.curriculum.pools import PoolsState, TaskPools
from areal_actors.tasks.mixture.mixed_tasks import of_source
from areal_actors.tasks.mixture.source_order import SourceOrder

SUCCESS = 0.5
"""Reward from which an episode is a success."""
WINDOW = 32
"""Groups of a source over which its success rate is measured for `until`."""


class PlacedTasks(Protocol):
    """A dataset in the seeded order of its first epoch."""

    def __len__(self) -> int:
        """Number of tasks."""
        ...

    def task(self, number: int, /) -> Task:
        """Returns the task at a place of the order, counted from 0; beyond the last, those of further epochs."""
        ...


class DrawnGroup(msgspec.Struct):
    """A group that was drawn, and whose episodes may still be tried again."""

    source: str
    place: int
    """Place of its task in the order of the source."""
    scores: dict[str, bool | None] = {}
    """Success or failure of each episode that ended; None for one without a score."""
    measured: bool = False
    """True once all have ended: its success rate is counted."""


class ScheduleState(msgspec.Struct):
    """Snapshot of a schedule."""

    groups: dict[int, DrawnGroup] = {}
    pools: dict[str, PoolsState] = {}
    changes: dict[int, dict[str, float]] = {}
    rates: dict[str, list[float]] = {}
    finished: list[str] = []
    """Sources that have reached their success rate."""


class Schedule:
    """The tasks of one or several sources, drawn by what was measured before."""

    def __init__(
        self,
        sources: Mapping[str, PlacedTasks],
        weights: Mapping[str, float],
        *,
        seed: int,
        group_size: int,
        until: Mapping[str, float] | None = None,
        curriculum: CurriculumSettings | None = None,
    ) -> None:
        """`sources` has a single empty name without a mixture; `until`: success rate by source that ends it."""
        self.sources, self.weights, self.until = sources, dict(weights), until or {}
        self.group_size, self.seed = group_size, seed
        self.order = SourceOrder(weights, seed)
        self.pools = {
            name: TaskPools(len(tasks), curriculum, f"{seed} {name}")
            for name, tasks in sources.items()
            if curriculum is not None
        }
        self.groups: dict[int, DrawnGroup] = {}
        self.drawn = 0
        self.rates: dict[str, list[float]] = {name: [] for name in sources}
        self.finished: list[str] = []

    def __len__(self) -> int:
        return sum(map(len, self.sources.values()))

    def task(self, number: int, /) -> Task:
        """Returns the task of a group that was drawn, or draws the next one."""
        if (group := self.groups.get(number)) is None:
            draw = self.order.draw(number)
            place = self.pools[draw.source].draw(draw.number) if self.pools else draw.number
            group = self.groups[number] = DrawnGroup(draw.source, place)
            self.drawn = max(self.drawn, number + 1)
        task = self.sources[group.source].task(group.place)
        return of_source(task, group.source) if group.source else task

    def end_episode(self, number: int, episode: str, reward: float | None) -> dict[str, float] | None:
        """Record the end of an episode; None for one without a score.

        Returns the weights of later draws if they change.
        """
        if (group := self.groups.get(number)) is None or group.measured:
            return None
        group.scores[episode] = None if reward is None else reward >= SUCCESS
        if len(group.scores) < self.group_size:
            return None
        group.measured = True
        successes = [success for success in group.scores.values() if success is not None]
        rate = sum(successes) / len(successes) if successes else None
        if self.pools:
            self.pools[group.source].record(group.place, rate)
        return None if rate is None else self._measure(group.source, rate)

    def forget_groups(self, running: Collection[int]) -> None:
        """Forget measured groups without an episode that runs or may be tried again."""
        self.groups = {
            number: group for number, group in self.groups.items() if not group.measured or number in running
        }

    def _measure(self, source: str, rate: float) -> dict[str, float] | None:
        rates = self.rates[source] = [*self.rates[source], rate][-WINDOW:]
        goal = self.until.get(source)
        if goal is None or source in self.finished or len(rates) < WINDOW or sum(rates) / WINDOW < goal:
            return None
        self.finished.append(source)
        left = {name: weight for name, weight in self.weights.items() if name not in self.finished}
        weights = left or self.weights
        self.order.change(self.drawn, weights)
        return dict(weights)

    def sizes(self) -> dict[str, dict[str, int]]:
        """Returns the number of tasks in each pool, by source."""
        return {name: pools.sizes() for name, pools in self.pools.items()}

    def snapshot(self) -> ScheduleState:
        """Open groups, pools and weights."""
        pools = {name: pools.state for name, pools in self.pools.items()}
        return deepcopy(ScheduleState(self.groups, pools, self.order.changes, self.rates, self.finished))

    def restore(self, state: ScheduleState, drawn: int) -> None:
        """Continue from a snapshot; `drawn` is the number of groups drawn."""
        state = deepcopy(state)
        self.groups, self.rates, self.finished, self.drawn = state.groups, state.rates, state.finished, drawn
        for name, pools in state.pools.items():
            self.pools[name].state = pools
        for first, weights in state.changes.items():
            self.order.change(first, weights)
