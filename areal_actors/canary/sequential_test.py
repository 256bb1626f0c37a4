"""An always-valid test of a difference of means, by betting against each value that the difference may have.

Each value m has a capital: the mean of the capitals of some constant bets on each next difference being above m, and
another of those on its being below. If the mean is m these are nonnegative martingales, and by Ville's inequality one
of them ever reaches 1 / alpha with a probability of at most alpha. So each limit holds at all times at once, and a
test may be looked at after every session. (Waudby-Smith, Ramdas: Estimating means of bounded random variables by
betting, arXiv:2010.09686; the capital of constant bets is monotone in m, so that the limits are exact.)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

BETS = np.geomspace(0.02, 0.9, 8)
"""Stakes as shares of the capital, per unit of a difference that is scaled to 0 … 1; below 1 no capital is lost."""
FINEST, STEPS = 0.001, 60
"""Smallest difference that limits resolve, and their number on each side of 0, as parts of the range."""

Floats = npt.NDArray[np.float64]


def possible_differences(*thresholds: float) -> Floats:
    """Returns values from -1 to 1, finest at 0, with the thresholds among them: f8 [values], ascending."""
    side = np.geomspace(FINEST, 1.0, STEPS)
    inside = [threshold for threshold in thresholds if -1.0 <= threshold <= 1.0]
    return np.unique(np.concatenate([-side, side, [0.0, *inside]]))


class DifferenceTest:
    """Lower and upper limit of the mean of differences between -1 and 1, from any number of them."""

    def __init__(self, differences: Floats, significance: float, shape: tuple[int, ...] = ()) -> None:
        """`differences` are the values that are tested; `shape` is that of independent tests, run at once."""
        self.differences, self.significance = differences, significance
        self.values = (differences + 1.0) / 2.0
        self.wealth: Floats = np.zeros((2, *shape, len(differences), len(BETS)))
        """Logarithm of the capital of each bet, on a larger mean and on a smaller one."""
        self.highest: Floats = np.full((2, *shape, len(differences)), -np.inf)
        """Highest logarithm of the mean capital so far."""
        self.count = 0
        self.sum: Floats = np.zeros(shape)
        self.squares: Floats = np.zeros(shape)

    def add(self, difference: Any) -> None:
        """Add a difference, from -1 to 1, to each of the tests."""
        added = np.asarray(difference, dtype=np.float64)
        self.count += 1
        self.sum = self.sum + added
        self.squares = self.squares + added * added
        excess = ((added[..., None] + 1.0) / 2.0 - self.values)[..., None] * BETS
        self.wealth[0] += np.log1p(excess)
        self.wealth[1] += np.log1p(-excess)
        richest = self.wealth.max(axis=-1)
        capital = richest + np.log(np.exp(self.wealth - richest[..., None]).mean(axis=-1))
        np.maximum(self.highest, capital, out=self.highest)

    def lower(self) -> Floats:
        """Returns the largest value that the mean exceeds; it is wrong, ever, with a probability of at most alpha."""
        return self._limit(0, self.differences, -1.0, np.max)

    def upper(self) -> Floats:
        """Returns the smallest value that the mean is below; it is wrong, ever, as rarely as the lower limit."""
        return self._limit(1, self.differences, 1.0, np.min)

    def _limit(self, side: int, differences: Floats, otherwise: float, choose: Any) -> Floats:
        is_refuted = self.highest[side] >= math.log(1.0 / self.significance)
        limit: Floats = choose(np.where(is_refuted, differences, otherwise), axis=-1)
        return limit

    def mean(self) -> float:
        """Returns the mean difference; 0 without any."""
        return float(self.sum) / self.count if self.count else 0.0

    def variance(self) -> float:
        """Returns the variance of a difference; that of two fair coins without any."""
        return max(float(self.squares) / self.count - self.mean() ** 2, 1e-6) if self.count > 1 else 0.5

    def count_needed(self, threshold: float, *, above: bool) -> int | None:
        """Returns how many more differences like those so far show that the mean is above, or below, a value.

        None if their mean is on the other side of it.
        """
        side = 0 if above else 1
        place = int(np.argmin(np.abs(self.differences - threshold)))
        if self.highest[side][place] >= math.log(1.0 / self.significance):
            return 0
        drift = (self.mean() - threshold) / 2.0 * (1.0 if above else -1.0)
        spread = self.variance() / 4.0 + drift * drift
        growth = BETS * drift - BETS * BETS * spread / 2.0
        goal = math.log(len(BETS) / self.significance)
        times = [(goal - has) / grows for has, grows in zip(self.wealth[side][place], growth, strict=True) if grows > 0]
        return max(math.ceil(min(times)), 1) if times else None
