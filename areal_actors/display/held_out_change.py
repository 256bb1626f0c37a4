"""The change of held-out scores with its interval, and the sentence about a run that has not shown a gain.

The interval is that of two independent proportions by their score intervals (Newcombe, Statistics in Medicine 17, 1998,
method 10). Of rewards between 0 and 1 that are no proportions it is too wide, never too narrow.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from areal_actors.display.run_state import RunState
from areal_actors.display.sentences import held_out_scores

Mode = Literal["sampled", "greedy"]
Z = 1.959964
"""Quantile of the normal distribution for 95 %."""


class HeldOutChange(NamedTuple):
    """A difference of two scores with the limits of its 95 % interval."""

    difference: float
    low: float
    high: float

    def is_within_chance(self) -> bool:
        """Returns True if the interval has 0."""
        return self.low <= 0.0 <= self.high

    def describe(self) -> str:
        """Returns the difference and its limits."""
        note = ", within chance" if self.is_within_chance() else ""
        return f"{self.difference:+.3f}, 95 % interval {self.low:+.3f} to {self.high:+.3f}{note}"


def measure_change(before: float, after: float, tasks: int, later_tasks: int) -> HeldOutChange | None:
    """Returns the change of a score between 0 and 1, of these numbers of tasks; None of another, or without tasks."""
    if min(tasks, later_tasks) < 1 or not (0.0 <= before <= 1.0 and 0.0 <= after <= 1.0):
        return None
    (low, high), (later_low, later_high) = _score_interval(before, tasks), _score_interval(after, later_tasks)
    difference = after - before
    return HeldOutChange(
        difference,
        difference - math.hypot(after - later_low, high - before),
        difference + math.hypot(later_high - after, before - low),
    )


def _score_interval(share: float, count: int) -> tuple[float, float]:
    """Returns the limits of a proportion (Wilson, 1927)."""
    middle = share + Z * Z / (2 * count)
    half = Z * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    scale = 1 + Z * Z / count
    return max((middle - half) / scale, 0.0), min((middle + half) / scale, 1.0)


def change_of(state: RunState, mode: Mode) -> HeldOutChange | None:
    """Returns the change from the first to the last evaluation in a mode; None without two."""
    evaluations = state.accuracy(mode)
    if len(evaluations) < 2:
        return None
    values = held_out_scores(evaluations)[1]
    return measure_change(values[0], values[-1], evaluations[0].tasks, evaluations[-1].tasks)


def describe_missing_gain(state: RunState) -> str:
    """Returns the sentence about a run whose held-out score has not risen beyond chance; empty if it has."""
    change = change_of(state, "sampled") or change_of(state, "greedy")
    if change is None or change.low > 0.0:
        return ""
    outcome = "has fallen" if change.high < 0.0 else "shows no gain"
    groups, equal = sum(state.history("groups")), sum(state.history("groups_without_signal"))
    signal = f"; {equal:.0f} of {groups:.0f} groups had equal rewards" if groups and equal else ""
    return f"the held-out score {outcome} ({change.describe()}){signal}; docs/not-learning.md has the usual causes"
