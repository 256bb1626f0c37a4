"""The number of groups that may run at once, adapted to the load of the engines.

`staleness_gate.max_concurrent = "auto"`.
The rule is that of TCP's congestion control (RFC 5681). Each group that ends while the limit is reached raises it by
one, which doubles it with every generation of groups. The first time an engine is full (requests wait in it, or its KV
cache is all but used), the limit falls to three quarters, and from then on grows by one for each generation only. While
an engine is busy it stays as it is; while one remains full it falls once for each generation, since what runs already
has to end before a lower limit can be felt.

The limit is an immutable value: each method returns it after one event.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from areal_actors.messages import LoadLevel
from areal_bus.message import FrozenMeta

LOWERED = 0.75
"""Factor by which a full engine lowers the limit."""


class ConcurrencyLimit(msgspec.Struct, metaclass=FrozenMeta):
    """The limit, and what it follows from."""

    groups: int
    """Maximum number of groups running at once."""
    most: int
    """Its own maximum: more groups are never allowed ahead of the weights."""
    threshold: int
    """Below it, the limit grows with every group that ends."""
    ended: int = 0
    """Groups that ended since the limit fell, or since it grew above the threshold."""
    levels: dict[str, LoadLevel] = {}
    """Load of each inference worker's engine."""

    def level_changed(self, worker: str, level: LoadLevel) -> ConcurrencyLimit:
        """Record the load of an engine.

        The first full one lowers the limit, unless the limit fell less than a generation ago.
        """
        changed = _with_levels(self, {**self.levels, worker: level})
        settled = self.threshold == self.most or self.ended >= self.groups
        return changed.lower() if level == "full" and not self.is_full() and settled else changed

    def worker_gone(self, worker: str) -> ConcurrencyLimit:
        """Forget the load of an inference worker that stopped or failed."""
        return _with_levels(self, {name: level for name, level in self.levels.items() if name != worker})

    def group_ended(self, *, limited: bool) -> ConcurrencyLimit:
        """Record the end of a group; `limited` is True if the limit was reached before it."""
        ended = self.ended + 1
        counted = msgspec.structs.replace(self, ended=ended)
        if self.is_full():
            return counted.lower() if ended >= self.groups else counted
        if "busy" in self.levels.values() or not limited or self.groups == self.most:
            return counted
        if self.groups < self.threshold:
            return msgspec.structs.replace(counted, groups=self.groups + 1)
        return msgspec.structs.replace(self, groups=self.groups + 1, ended=0) if ended >= self.groups else counted

    def is_full(self) -> bool:
        """True if an engine is full."""
        return "full" in self.levels.values()

    def lower(self) -> ConcurrencyLimit:
        """Returns the limit after an engine was full for a generation."""
        groups = max(int(self.groups * LOWERED), 1)
        return msgspec.structs.replace(self, groups=groups, threshold=groups, ended=0)


def initial_limit(batch_size: int, most: int) -> ConcurrencyLimit:
    """Returns the limit at the start of a run: the groups of one batch."""
    return ConcurrencyLimit(groups=min(batch_size, most), most=most, threshold=most)


def _with_levels(limit: ConcurrencyLimit, levels: Mapping[str, LoadLevel]) -> ConcurrencyLimit:
    return msgspec.structs.replace(limit, levels=dict(levels))
