"""Confidence intervals of figures of a run, by resampling its groups.

Episodes of a group share their task and are no independent sample, so whole groups are drawn. The quantiles are widened
as Student's t widens those of the normal distribution ("expanded percentile", Hesterberg 2015,
doi:10.1080/00031305.2015.1089789), and each end is that of the jackknife with Student's t if it lies farther out:
percentiles of few groups are too narrow where a figure is a ratio.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import NormalDist
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
RESAMPLES = 2000
CELLS_AT_ONCE = 4_000_000
"""Draws in memory at once."""
NORMAL = NormalDist()
ROUNDING = 1e-9
Totals = NDArray[np.float64]
Statistic = Callable[[Totals], Any]
"""Figure of totals over groups: float64 `[..., columns]` → `[...]`."""


class Interval(msgspec.Struct, frozen=True):
    """An estimate with the ends of its 95 % interval; NaN if unknown."""

    value: float
    low: float
    high: float

    def holds(self, truth: float) -> bool:
        """True if a value lies in the interval, up to rounding."""
        rounding = ROUNDING * max(1.0, abs(truth))
        return self.low - rounding <= truth <= self.high + rounding


def group_intervals(
    sums: Totals,
    statistics: Mapping[str, Statistic],
    *,
    ranges: Mapping[str, tuple[float, float]] = MappingProxyType({}),
    seed: int = 0,
) -> dict[str, Interval]:
    """Returns each figure with its interval.

    Args:
        sums: float64 `[groups, columns]`, sums over the episodes of each group.
        statistics: figures by name, each of totals over groups.
        ranges: least and greatest value of figures that have them, as a share. One that is at an end of its range has
            no spread to resample; its interval is what groups could add of which these happen to have none, by the
            exact bound of a binomial share.
        seed: of the draws.
    """
    groups = len(sums)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = {name: float(of(sums.sum(axis=0))) for name, of in statistics.items()}
        if groups < 2:
            return {name: Interval(value, math.nan, math.nan) for name, value in values.items()}
        resampled = _resampled_totals(sums, np.random.default_rng(seed))
        drawn = {name: np.asarray(of(resampled), np.float64) for name, of in statistics.items()}
        without_one = sums.sum(axis=0) - sums
        jackknifed = {name: np.asarray(of(without_one), np.float64) for name, of in statistics.items()}
    t = _student_quantile(groups - 1)
    tail = NORMAL.cdf(-t * math.sqrt(groups / (groups - 1)))
    intervals: dict[str, Interval] = {}
    for name, column in drawn.items():
        known = column[np.isfinite(column)]
        low, high = np.quantile(known, [tail, 1 - tail]) if len(known) else (math.nan, math.nan)
        reach = t * _jackknife_error(jackknifed[name])
        value = values[name]
        intervals[name] = Interval(value, float(np.fmin(low, value - reach)), float(np.fmax(high, value + reach)))
        if name in ranges:
            intervals[name] = _with_exact_bound(intervals[name], ranges[name], groups)
    return intervals


def _resampled_totals(sums: Totals, random: np.random.Generator) -> Totals:
    groups, parts = len(sums), []
    at_once = max(1, CELLS_AT_ONCE // groups)
    for first in range(0, RESAMPLES, at_once):
        count = min(at_once, RESAMPLES - first)
        drawn = random.integers(0, groups, (count, groups))
        drawn += np.arange(count)[:, None] * groups
        times = np.bincount(drawn.ravel(), minlength=count * groups).reshape(count, groups)
        parts.append(times.astype(np.float64) @ sums)
    return np.concatenate(parts)


def _student_quantile(freedom: int) -> float:
    """Quantile of 97.5 % of Student's t, by the expansion of Cornish and Fisher."""
    z = NORMAL.inv_cdf((1 + LEVEL) / 2)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _jackknife_error(without_one: NDArray[np.float64]) -> float:
    """Standard error of a figure, from its values without each group: NaN if one of these is not known."""
    groups = len(without_one)
    return math.sqrt((groups - 1) / groups * float(np.square(without_one - without_one.mean()).sum()))


def _with_exact_bound(interval: Interval, ends: tuple[float, float], groups: int) -> Interval:
    least, greatest = ends
    unseen = (greatest - least) * (1 - ((1 - LEVEL) / 2) ** (1 / groups))
    low, high = max(interval.low, least), min(interval.high, greatest)
    if math.isclose(interval.value, least, abs_tol=ROUNDING):
        high = max(high, least + unseen)
    if math.isclose(interval.value, greatest, abs_tol=ROUNDING):
        low = min(low, greatest - unseen)
    return Interval(interval.value, low, high)
