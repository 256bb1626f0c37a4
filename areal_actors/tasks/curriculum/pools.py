"""Pools of the tasks of a source, by the success rate of the last group of each.

A fold over draws and results: the n-th draw of a source is a function of the seed, n and the results before it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec

from areal_actors.core.curriculum_settings import CurriculumSettings

NEW, MIXED, SOLVED, UNSOLVED = "new", "mixed", "solved", "unsolved"
RETIRED, RUNNING = "retired", "running"
MEASURED = (MIXED, SOLVED, UNSOLVED, RETIRED)


class PoolsState(msgspec.Struct):
    """Tasks of a source by pool, each with the draw by which it was drawn last, in the order of their results."""

    pools: dict[str, dict[int, int]] = msgspec.field(default_factory=lambda: {name: {} for name in MEASURED})
    running: dict[int, int] = {}
    """Tasks whose group goes on."""
    solved_in_a_row: dict[int, int] = {}
    """Groups in a row with successes only, of the tasks that have any."""
    drawn_new: int = 0
    """Number of tasks that were drawn at least once, in the order of the dataset."""
    returned: int = 0
    """Draws of tasks that had no success before."""


class TaskPools:
    """Chooses the pool of each draw by weight, and in it the task that has waited longest."""

    def __init__(self, tasks: int, settings: CurriculumSettings, seed: str) -> None:
        """`tasks`: number of tasks, which are numbered by their place in the order of the source's first epoch."""
        self.tasks, self.settings, self.seed = tasks, settings, seed
        self.state = PoolsState()

    def draw(self, number: int) -> int:
        """Returns the place of the task of a draw of this source."""
        pool = self._choose_pool(number)
        state = self.state
        if pool == NEW:
            place = state.drawn_new
            state.drawn_new += 1
        else:
            place = next(iter(state.pools[pool]))
            del state.pools[pool][place]
            state.returned += pool == UNSOLVED
        state.running[place] = number
        return place

    def record(self, place: int, rate: float | None) -> None:
        """Move a task to the pool of its success rate; None for a group without a result."""
        state = self.state
        if (number := state.running.pop(place, None)) is None:
            return
        if rate is not None and rate >= 1:
            row = state.solved_in_a_row[place] = state.solved_in_a_row.get(place, 0) + 1
            pool = RETIRED if row >= self.settings.retire_after else SOLVED
        else:
            state.solved_in_a_row.pop(place, None)
            pool = UNSOLVED if rate == 0 else MIXED
        state.pools[pool][place] = number

    def sizes(self) -> dict[str, int]:
        """Returns the number of tasks in each pool."""
        state = self.state
        sizes = {NEW: self.tasks - state.drawn_new, **{name: len(state.pools[name]) for name in MEASURED}}
        return {**sizes, RUNNING: len(state.running)}

    def _choose_pool(self, number: int) -> str:
        weights = {name: weight for name, weight in self._weights(number).items() if weight}
        if weights:
            chance = random.Random(f"pool {number} of {self.seed}")
            return chance.choices(list(weights), list(weights.values()))[0]
        pools = self.state.pools
        if rest := [name for name in (MIXED, UNSOLVED, SOLVED, RETIRED) if pools[name]]:
            return rest[0]
        if self.state.drawn_new < self.tasks:
            return NEW
        # Every task has a group that goes on: the one that was drawn first is drawn a second time.
        place = next(iter(self.state.running))
        self.record(place, None)
        return MIXED

    def _weights(self, number: int) -> Mapping[str, float]:
        settings, pools = self.settings, self.state.pools
        oldest = next(iter(pools[UNSOLVED].values()), number)
        may_return = number - oldest >= settings.return_after and bool(pools[UNSOLVED])
        return {
            NEW: settings.new if self.state.drawn_new < self.tasks else 0.0,
            MIXED: settings.mixed if pools[MIXED] else 0.0,
            SOLVED: settings.solved if pools[SOLVED] else 0.0,
            UNSOLVED: settings.unsolved if may_return else 0.0,
        }
