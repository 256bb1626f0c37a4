"""Sources of a mixture in the audit: every group is of the source that seed and weights draw under its number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from areal_actors.audit.groups import Finding
from areal_actors.tasks.mixture.source_order import SourceOrder

Weights = tuple[tuple[str, float], ...]


@lru_cache(maxsize=4)
def _order_of(seed: int, weights: Weights, changes: tuple[tuple[int, Weights], ...]) -> SourceOrder:
    """Returns an order, with the draws that were computed before."""
    order = SourceOrder(dict(weights), seed)
    for first, later in changes:
        order.change(first, dict(later))
    return order


class SourceLedger(msgspec.Struct):
    """Groups of a run by their source, each counted once, when its first episode ends."""

    seed: int = 0
    weights: dict[str, float] = {}
    """Weight by source as the recipe has it; empty without a mixture."""
    changes: dict[int, dict[str, float]] = {}
    """Weights from a later draw on."""
    counts: dict[str, int] = {}
    """Number of ended groups by source."""
    counted: set[int] = set()
    """Numbers of counted groups, from `counted_below` on; all below are counted."""
    counted_below: int = 0

    def begin(self, recipe: Mapping[str, Any]) -> None:
        """Take seed and weights from the recipe of a start or resume."""
        sources = recipe.get("task", {}).get("mix", ())
        self.seed, self.weights = recipe.get("seed", 0), {source["name"]: source["weight"] for source in sources}

    def change(self, first: int, weights: Mapping[str, float]) -> None:
        """Record that draws from `first` on have other weights."""
        self.changes[first] = dict(weights)

    def order(self) -> SourceOrder:
        """Returns the order of the draws."""
        changes = tuple((first, tuple(weights.items())) for first, weights in self.changes.items())
        return _order_of(self.seed, tuple(self.weights.items()), changes)

    def end(self, group: str, source: str) -> Iterator[Finding]:
        """Count the group of an ended episode; a group of another source than was to be drawn is a fault."""
        if not self.weights or not group.isdecimal():
            return
        number = int(group)
        if number < self.counted_below or number in self.counted:
            return
        self.counted.add(number)
        while self.counted_below in self.counted:
            self.counted.discard(self.counted_below)
            self.counted_below += 1
        self.counts[source] = self.counts.get(source, 0) + 1
        drawn = self.order().draw(number).source
        if source != drawn:
            yield "source", f"group {number} has a task of source '{source}', expected '{drawn}'"

    def describe(self, granted: int) -> str:
        """Returns the draws of each source beside those that seed and weights give, and the share asked for."""
        order, total = self.order(), sum(self.weights.values())
        expected = Counter(order.draw(number).source for number in range(granted))
        parts = (
            f"{name} {self.counts.get(name, 0):,} of {expected[name]:,} draws"
            f" ({expected[name] / max(granted, 1):.1%}, asked {weight / total:.1%})"
            for name, weight in self.weights.items()
        )
        return ", ".join(parts)
