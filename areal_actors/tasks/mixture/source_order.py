"""Order in which a mixture draws from its sources: a function of seed, weights and the number of the draw.

Each draw takes the source that is furthest behind its share, so that after n draws every source has its share of n to
within about one draw, and every batch has nearly the mixture that was asked for. The seed decides where the pattern
begins. Weights may change from a draw on (`SourcesChanged` in the log); earlier draws stay as they were.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import NamedTuple


class SourceDraw(NamedTuple):
    """A draw from a mixture."""

    source: str
    number: int
    """Number among the draws of this source, from 0."""


class SourceOrder:
    """Endless sequence of draws from sources by weight."""

    def __init__(self, weights: Mapping[str, float], seed: int) -> None:
        """`weights`: positive, by source, in the order of the recipe."""
        self.changes: dict[int, dict[str, float]] = {0: dict(weights)}
        """Weights by the first draw for which they hold."""
        start = random.Random(f"sources of {seed}")
        self._start = {name: start.random() for name in weights}
        self._draws: list[SourceDraw] = []
        self._owed = dict(self._start)
        """Draws that a source is behind its share."""
        self._counts = dict.fromkeys(weights, 0)
        self._shares: dict[str, float] = {}

    def draw(self, number: int) -> SourceDraw:
        """Returns a draw, counted from 0."""
        while len(self._draws) <= number:
            self._draw_next()
        return self._draws[number]

    def change(self, first: int, weights: Mapping[str, float]) -> None:
        """Use other weights from draw `first` on; sources without one are not drawn."""
        self.changes[first] = dict(weights)
        if first < len(self._draws):
            self._draws, self._owed, self._counts = [], dict(self._start), dict.fromkeys(self._start, 0)

    def _draw_next(self) -> None:
        if (weights := self.changes.get(len(self._draws))) is not None:
            total = sum(weights.values())
            self._shares = {name: weight / total for name, weight in weights.items()}
        for name, share in self._shares.items():
            self._owed[name] += share
        source = max(self._shares, key=self._owed.__getitem__)
        self._owed[source] -= 1
        self._draws.append(SourceDraw(source, self._counts[source]))
        self._counts[source] += 1
