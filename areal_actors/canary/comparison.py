"""A metric of the candidate's sessions against that of the served version's, by pairs of both, as a state to keep."""

from __future__ import annotations

from statistics import fmean

import numpy as np

from areal_actors.canary.sequential_test import DifferenceTest, possible_differences
from areal_actors.core.values import Value
from areal_actors.messages import ComparedMetric


class ComparisonState(Value):
    """Snapshot of a comparison."""

    waiting: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    counts: tuple[int, int] = (0, 0)
    sums: tuple[float, float] = (0.0, 0.0)
    wealth: bytes = b""
    highest: bytes = b""
    pairs: int = 0
    sum: float = 0.0
    squares: float = 0.0


class MetricComparison:
    """Values of both sides in the order of arrival: a block of the candidate's and one of the served version's a pair.

    The blocks have fixed sizes by the share, so that pairs are independent and have one mean: the difference.
    """

    def __init__(
        self, name: str, significance: float, *, threshold: float = 0.0, bounds: tuple[float, float] = (0.0, 1.0)
    ) -> None:
        """`bounds` are the lowest and the highest value; `threshold` is a difference that limits resolve exactly."""
        self.name, self.bounds = name, bounds
        self.scale = bounds[1] - bounds[0]
        self.test = DifferenceTest(possible_differences(threshold / self.scale), significance)
        self.waiting: tuple[list[float], list[float]] = ([], [])
        """Values that are not in a pair yet, of the served version and of the candidate."""
        self.counts, self.sums = [0, 0], [0.0, 0.0]

    def add(self, value: float, *, is_candidate: bool, blocks: tuple[int, int]) -> None:
        """Add a session's value.

        Args:
            value: those outside of the bounds count as the nearest of the two.
            is_candidate: side of the session.
            blocks: sessions of the served version and of the candidate in a pair, as `block_sizes` returns them.
        """
        self._count(value, is_candidate=is_candidate)
        self.waiting[is_candidate].append(self._scaled(value))
        while all(len(values) >= size for values, size in zip(self.waiting, blocks, strict=True)):
            served, candidate = (fmean(values[:size]) for values, size in zip(self.waiting, blocks, strict=True))
            for values, size in zip(self.waiting, blocks, strict=True):
                del values[:size]
            self.test.add(candidate - served)

    def add_pair(self, served: float, candidate: float) -> None:
        """Add the values of two answers to one prompt."""
        self._count(served, is_candidate=False)
        self._count(candidate, is_candidate=True)
        self.test.add(self._scaled(candidate) - self._scaled(served))

    def _count(self, value: float, *, is_candidate: bool) -> None:
        self.counts[is_candidate] += 1
        self.sums[is_candidate] += min(max(value, self.bounds[0]), self.bounds[1])

    def _scaled(self, value: float) -> float:
        return (min(max(value, self.bounds[0]), self.bounds[1]) - self.bounds[0]) / self.scale

    def metric(self) -> ComparedMetric:
        """Returns the means, and the difference with its limits."""
        served, candidate = (
            total / count if count else 0.0 for total, count in zip(self.sums, self.counts, strict=True)
        )
        return ComparedMetric(
            name=self.name,
            candidate=candidate,
            serving=served,
            difference=self.test.mean() * self.scale,
            low=float(self.test.lower()) * self.scale,
            high=float(self.test.upper()) * self.scale,
            pairs=self.test.count,
        )

    def snapshot(self) -> ComparisonState:
        """Returns the state as it is now."""
        test = self.test
        return ComparisonState(
            waiting=(tuple(self.waiting[0]), tuple(self.waiting[1])),
            counts=(self.counts[0], self.counts[1]),
            sums=(self.sums[0], self.sums[1]),
            wealth=test.wealth.tobytes(),
            highest=test.highest.tobytes(),
            pairs=test.count,
            sum=float(test.sum),
            squares=float(test.squares),
        )

    def restore(self, state: ComparisonState) -> None:
        """Restore the state of a snapshot of the same comparison."""
        test = self.test
        self.waiting = (list(state.waiting[0]), list(state.waiting[1]))
        self.counts, self.sums = list(state.counts), list(state.sums)
        test.wealth = np.frombuffer(state.wealth).reshape(test.wealth.shape).copy()
        test.highest = np.frombuffer(state.highest).reshape(test.highest.shape).copy()
        test.count, test.sum, test.squares = state.pairs, np.asarray(state.sum), np.asarray(state.squares)


def block_sizes(share: float) -> tuple[int, int]:
    """Returns the sessions of the served version and of the candidate in a pair: about as many as come to each."""
    share = min(max(share, 0.001), 0.999)
    return max(round((1 - share) / share), 1), max(round(share / (1 - share)), 1)
