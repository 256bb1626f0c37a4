"""Bounded staleness (AReaL, arXiv:2505.24298, eq. 3), without I/O.

Entry: with batches of B groups and bound s, at most (s + 1) * B groups may be ahead of the trained weights (running,
complete, or in the batch being trained), so that in steady state no group waits more than s versions. Trained groups
are counted by number, never as version x B: dynamic batches, drops and recovery cannot inflate the budget, and
duplicate events are counted once.

Exit: the formula alone does not bound the age of stragglers. `batcher.exit_policy` applies the bound per token: the
batcher drops whole groups, and the trainer masks tokens older than `BatchFormed.oldest_version`.

The ledger is a fold: each method changes it by one event and returns it. It is changed in place, so that an event costs
the same with ten groups as with ten thousand; a snapshot is its encoded copy.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Literal

import msgspec

from areal_actors.core.config import Config, NonNegativeInt, PositiveInt
from areal_actors.staleness.off_policy_guard import OffPolicyGuardConfig

Bound = Literal["none", "staleness", "concurrency", "steps", "baseline", "evaluation", "weights", "stopped"]


class StalenessGateConfig(Config):
    """`[staleness_gate]`: limits of groups ahead of training."""

    max_staleness: NonNegativeInt = 2
    """Maximum number of weight versions between sampling and training of a token; 0 is synchronous training."""
    max_concurrent: PositiveInt | Literal["auto"] = 48
    """Maximum number of groups running at once. Unset, as many as `max_staleness` allows:
    `(max_staleness + 1) × trainer.batch_size` (48 where a model is only served). `auto`: begins with one batch, grows
    while the engines have room and falls when one of them is full; never above what `max_staleness` allows."""
    surplus_groups: NonNegativeInt = 0
    """Groups that are started beyond those that the remaining steps need, so that the last batches do not wait for the
    slowest; those left when the last batch is formed are dropped as `surplus`. Unset, one batch; 0 where training is
    synchronous, where the model is `embedded`, which samples on the trainer's cores, and where external agents bring
    the tasks."""
    guard: OffPolicyGuardConfig = OffPolicyGuardConfig()

    def most_concurrent(self, batch_size: int) -> int:
        """Returns the number of groups that run at once at most."""
        return (self.max_staleness + 1) * batch_size if self.max_concurrent == "auto" else self.max_concurrent


class Ledger(msgspec.Struct, kw_only=True):
    """Groups from their grant until they are trained or lost."""

    group_size: int
    weight_version: int = -1
    """-1 before the first weights."""
    granted: int = 0
    """Number of groups granted since the run began, and number of the next group."""
    trained: int = 0
    running: dict[int, set[str]] = {}
    """Ended episodes of each running group."""
    kept: set[int] = set()
    """Running groups with at least one exported trajectory."""
    complete: set[int] = set()
    """Groups that wait for a batch."""
    in_batch: set[int] = set()
    """Groups of the batch being trained."""
    loaded: dict[str, int] = {}
    """Weight version of each live inference worker."""
    sizes: dict[int, int] = {}
    """Number of episodes of each running group that has another size than `group_size`."""

    def grant(self, groups: int) -> Ledger:
        """Grant the next groups."""
        self.running.update((self.granted + index, set()) for index in range(groups))
        self.granted += groups
        return self

    def episode_ended(self, group: int, episode: str, *, exported: bool) -> Ledger:
        """Record an episode that was exported, or abandoned after all attempts; duplicates are ignored."""
        ended = self.running.get(group)
        if ended is None or episode in ended:
            return self
        ended.add(episode)
        if exported:
            self.kept.add(group)
        if len(ended) == self.sizes.get(group, self.group_size):
            del self.running[group]
            self.sizes.pop(group, None)
            if group in self.kept:
                self.kept.remove(group)
                self.complete.add(group)
        return self

    def group_dropped(self, group: int) -> Ledger:
        """Remove a complete group that will not be trained."""
        self.complete.discard(group)
        return self

    def batch_formed(self, groups: AbstractSet[int]) -> Ledger:
        """Move these groups into the batch being trained."""
        self.complete -= groups
        self.in_batch |= groups
        return self

    def weights_published(self, weight_version: int) -> Ledger:
        """Count the groups of the batch as trained."""
        if weight_version > self.weight_version:
            self.weight_version = weight_version
            self.trained += len(self.in_batch)
            self.in_batch.clear()
        return self

    def weights_loaded(self, worker: str, weight_version: int) -> Ledger:
        """Record the weight version of an inference worker."""
        self.loaded[worker] = weight_version
        return self

    def worker_gone(self, worker: str) -> Ledger:
        """Remove an inference worker that stopped or failed."""
        self.loaded.pop(worker, None)
        return self

    def ahead(self) -> int:
        """Returns the number of groups ahead of the trained weights."""
        return len(self.running) + len(self.complete) + len(self.in_batch)

    def free_groups(
        self, max_staleness: int, concurrent: int, batch_size: int, steps: int, surplus: int = 0
    ) -> tuple[int, Bound]:
        """Returns the number of groups that may start now, and the limiting bound if none may.

        `concurrent` may run at once; `surplus` more than the remaining steps need may start until the last batch is
        formed.
        """
        if self.weight_version < 0:
            return 0, "weights"
        synchronous = max_staleness == 0
        if synchronous and not (
            self.loaded and all(version >= self.weight_version for version in self.loaded.values())
        ):
            return 0, "weights"
        ends = self.weight_version + bool(self.in_batch) >= steps
        rooms: dict[Bound, int] = {
            "steps": (steps - self.weight_version) * batch_size - self.ahead() + (0 if ends else surplus),
            "staleness": (max_staleness + 1) * batch_size - self.ahead(),
            "concurrency": concurrent - len(self.running),
        }
        bound = min(rooms, key=lambda name: rooms[name])
        return max(rooms[bound], 0), bound if rooms[bound] <= 0 else "none"
