"""Bounded staleness (AReaL, arXiv:2505.24298, eq. 3), without I/O.

Entry: with batches of B groups and bound s, at most (s + 1) * B groups may be ahead of the trained weights (running,
complete, or in the batch being trained), so that in steady state no group waits more than s versions. Trained groups are
counted by number, never as version x B: dynamic batches, drops and recovery cannot inflate the budget, and duplicate events
are counted once.

Exit: the formula alone does not bound the age of stragglers. `batcher.exit_policy` applies the bound per token: the batcher drops
whole groups, and the trainer masks tokens older than `BatchFormed.oldest_version`.

The ledger is an immutable value: each method returns it after one event.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from areal_actors.core.config import Config, NonNegativeInt, PositiveInt
from areal_actors.staleness.off_policy_guard import OffPolicyGuardConfig
from bus.message import FrozenMeta

Bound = Literal["none", "staleness", "concurrency", "steps", "baseline", "evaluation", "weights", "stopped"]


class StalenessGateConfig(Config):
    """`[staleness_gate]`: limits of groups ahead of training."""

    max_staleness: NonNegativeInt = 2
    """Maximum number of weight versions between sampling and training of a token; 0 is synchronous training."""
    max_concurrent: PositiveInt | Literal["auto"] = 48
    """Maximum number of groups running at once. Unset, as many as `max_staleness` allows: `(max_staleness + 1) × trainer.batch_size`
    (48 where a model is only served). `auto`: begins with one batch, grows while the engines have room and falls when one of them is full;
    never above what `max_staleness` allows."""
    surplus_groups: NonNegativeInt = 0
    """Groups that are started beyond those that the remaining steps need, so that the last batches do not wait for the slowest; those left
    when the last batch is formed are dropped as `surplus`. Unset, one batch; 0 where training is synchronous, where the model is
    `embedded`, which samples on the trainer's cores, and where external agents bring the tasks."""
    guard: OffPolicyGuardConfig = OffPolicyGuardConfig()

    def most_concurrent(self, batch_size: int) -> int:
        """Returns the number of groups that run at once at most."""
        return (self.max_staleness + 1) * batch_size if self.max_concurrent == "auto" else self.max_concurrent


class Ledger(msgspec.Struct, metaclass=FrozenMeta):
    """Groups from their grant until they are trained or lost."""

    group_size: int
    weight_version: int = -1
    """-1 before the first weights."""
    granted: int = 0
    """Number of groups granted since the run began, and number of the next group."""
    trained: int = 0
    running: dict[int, frozenset[str]] = {}
    """Ended episodes of each running group."""
    kept: frozenset[int] = frozenset()
    """Running groups with at least one exported trajectory."""
    complete: frozenset[int] = frozenset()
    """Groups that wait for a batch."""
    in_batch: frozenset[int] = frozenset()
    """Groups of the batch being trained."""
    loaded: dict[str, int] = {}
    """Weight version of each live inference worker."""

    def granted_more(self, groups: int) -> Ledger:
        """Grant the next groups."""
        started = {self.granted + index: frozenset[str]() for index in range(groups)}
        return msgspec.structs.replace(self, granted=self.granted + groups, running={**self.running, **started})

    def episode_ended(self, group: int, episode: str, *, exported: bool) -> Ledger:
        """Record an episode that was exported, or abandoned after all attempts; duplicates are ignored."""
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
        """Remove a complete group that will not be trained."""
        return msgspec.structs.replace(self, complete=self.complete - {group})

    def batch_formed(self, groups: frozenset[int]) -> Ledger:
        """Move these groups into the batch being trained."""
        return msgspec.structs.replace(self, complete=self.complete - groups, in_batch=self.in_batch | groups)

    def weights_published(self, weight_version: int) -> Ledger:
        """Count the groups of the batch as trained."""
        if weight_version <= self.weight_version:
            return self
        return msgspec.structs.replace(self, weight_version=weight_version, trained=self.trained + len(self.in_batch), in_batch=frozenset())

    def weights_loaded(self, worker: str, weight_version: int) -> Ledger:
        """Record the weight version of an inference worker."""
        return msgspec.structs.replace(self, loaded={**self.loaded, worker: weight_version})

    def worker_gone(self, worker: str) -> Ledger:
        """Remove an inference worker that stopped or failed."""
        return msgspec.structs.replace(self, loaded={name: version for name, version in self.loaded.items() if name != worker})

    def ahead(self) -> int:
        """Returns the number of groups ahead of the trained weights."""
        return len(self.running) + len(self.complete) + len(self.in_batch)

    def free_groups(self, max_staleness: int, concurrent: int, batch_size: int, steps: int, surplus: int = 0) -> tuple[int, Bound]:
        """Returns the number of groups that may start now, and the limiting bound if none may.

        `concurrent` may run at once; `surplus` more than the remaining steps need may start until the last batch is formed.
        """
        if self.weight_version < 0:
            return 0, "weights"
        synchronous = max_staleness == 0
        if synchronous and not (self.loaded and all(version >= self.weight_version for version in self.loaded.values())):
            return 0, "weights"
        ends = self.weight_version + bool(self.in_batch) >= steps
        rooms: dict[Bound, int] = {
            "steps": (steps - self.weight_version) * batch_size - self.ahead() + (0 if ends else surplus),
            "staleness": (max_staleness + 1) * batch_size - self.ahead(),
            "concurrency": concurrent - len(self.running),
        }
        bound = min(rooms, key=lambda name: rooms[name])
        return max(rooms[bound], 0), bound if rooms[bound] <= 0 else "none"
