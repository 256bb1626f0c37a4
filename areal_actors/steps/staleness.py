"""The arithmetic of bounded staleness (AReaL, arXiv:2505.24298, eq. 3), without any I/O.

Entry: with batches of B groups and bound s, at most (s + 1) * B groups may be ahead of the trained weights (running,
complete, or in the batch being trained), so that in steady state no group waits more than s versions. Groups are
counted by name when they are really trained, never as version x B: dynamic batches, drops and recovery cannot
inflate the budget, and a slot that comes back twice is counted once.

Exit: the formula alone does not bound a straggler's age. What leaves for the trainer is held to the bound per token.

The ledger is an immutable value: each method is one event's effect.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from areal_actors.config import Config, NonNegativeInt, PositiveInt
from bus.message import FrozenMeta

Bound = Literal["none", "staleness", "concurrency", "steps", "baseline", "evaluation", "weights", "stopped"]


class StalenessGateConfig(Config):
    """`[staleness_gate]`."""

    max_staleness: NonNegativeInt = 2
    """Weight versions between a token's generation and its training; 0 is synchronous training."""
    max_concurrent: PositiveInt = 48
    """Groups running at once."""


class Ledger(msgspec.Struct, metaclass=FrozenMeta):
    """Every group from its grant until it is trained or lost."""

    group_size: int
    weight_version: int = -1
    """-1 before the first weights."""
    granted: int = 0
    """Groups granted since the run began; the next group has this number."""
    trained: int = 0
    running: dict[int, frozenset[str]] = {}
    """Per running group, its episodes that have ended."""
    kept: frozenset[int] = frozenset()
    """Running groups with at least one exported trajectory."""
    complete: frozenset[int] = frozenset()
    """Groups that wait for a batch."""
    in_batch: frozenset[int] = frozenset()
    """Groups of the batch being trained."""
    loaded: dict[str, int] = {}
    """The weight version that each live inference worker has."""

    def granted_more(self, groups: int) -> Ledger:
        """The next groups may start."""
        started = {self.granted + index: frozenset[str]() for index in range(groups)}
        return msgspec.structs.replace(self, granted=self.granted + groups, running={**self.running, **started})

    def episode_ended(self, group: int, episode: str, *, exported: bool) -> Ledger:
        """An episode was exported, or abandoned for good; the second time it counts for nothing."""
        ended = self.running.get(group)
        if ended is None or episode in ended:
            return self
        kept = self.kept | {group} if exported else self.kept
        ended = ended | {episode}
        if len(ended) < self.group_size:
            return msgspec.structs.replace(self, running={**self.running, group: ended}, kept=kept)
        rest = {number: episodes for number, episodes in self.running.items() if number != group}
        complete = self.complete | {group} if group in kept else self.complete
        return msgspec.structs.replace(self, running=rest, kept=kept - {group}, complete=complete)

    def group_dropped(self, group: int) -> Ledger:
        """A complete group will not be trained."""
        return msgspec.structs.replace(self, complete=self.complete - {group})

    def batch_formed(self, groups: frozenset[int]) -> Ledger:
        """These groups are being trained."""
        return msgspec.structs.replace(self, complete=self.complete - groups, in_batch=self.in_batch | groups)

    def weights_published(self, weight_version: int) -> Ledger:
        """What was in the batch is in the weights."""
        if weight_version <= self.weight_version:
            return self
        return msgspec.structs.replace(self, weight_version=weight_version, trained=self.trained + len(self.in_batch), in_batch=frozenset())

    def weights_loaded(self, worker: str, weight_version: int) -> Ledger:
        """An inference worker generates with this version."""
        return msgspec.structs.replace(self, loaded={**self.loaded, worker: weight_version})

    def worker_gone(self, worker: str) -> Ledger:
        """An inference worker is gone; nobody waits for it."""
        return msgspec.structs.replace(self, loaded={name: version for name, version in self.loaded.items() if name != worker})

    def ahead(self) -> int:
        """Groups ahead of the trained weights."""
        return len(self.running) + len(self.complete) + len(self.in_batch)

    def free_groups(self, config: StalenessGateConfig, batch_size: int, steps: int) -> tuple[int, Bound]:
        """How many groups may start now, and which bound binds when none may."""
        if self.weight_version < 0:
            return 0, "weights"
        synchronous = config.max_staleness == 0
        if synchronous and not (self.loaded and all(version >= self.weight_version for version in self.loaded.values())):
            return 0, "weights"
        rooms: dict[Bound, int] = {
            "steps": (steps - self.weight_version) * batch_size - self.ahead(),
            "staleness": (config.max_staleness + 1) * batch_size - self.ahead(),
            "concurrency": config.max_concurrent - len(self.running),
        }
        bound = min(rooms, key=lambda name: rooms[name])
        return max(rooms[bound], 0), bound if rooms[bound] <= 0 else "none"
