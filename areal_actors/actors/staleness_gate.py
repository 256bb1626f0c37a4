"""The staleness gate: how many groups may start, so that none is trained too late."""

from __future__ import annotations

from collections.abc import Iterator

from areal_actors.actor import Actor, Emits, on
from areal_actors.messages import (
    ActorFailed,
    ActorStopped,
    BatchFormed,
    CapacityGranted,
    EpisodeAbandoned,
    EvaluationCompleted,
    RunResumed,
    RunStopping,
    TrajectoryDropped,
    TrajectoryExported,
    WeightsLoaded,
    WeightsPublished,
)
from areal_actors.steps.staleness import Ledger, StalenessGateConfig


class StalenessGate(Actor):
    """Grants capacity while no bound binds.

    The gate opens with the first weights, or with their evaluation, sampled and greedy, when the run begins with one. Held-out
    episodes take no capacity here; later evaluations are waited for by nobody.
    """

    def __init__(self, config: StalenessGateConfig, *, group_size: int, batch_size: int, steps: int, after_baseline: bool = False) -> None:
        self.config = config
        self.batch_size = batch_size
        self.steps = steps
        self.ledger = Ledger(group_size=group_size)
        self.awaited = {"sampled", "greedy"} if after_baseline else set[str]()
        self.stopped = False

    @on
    async def weights_published(self, event: WeightsPublished) -> Emits[CapacityGranted]:
        self.ledger = self.ledger.weights_published(event.weight_version)
        for grant in self._grants():
            yield grant

    @on
    async def weights_loaded(self, event: WeightsLoaded) -> Emits[CapacityGranted]:
        self.ledger = self.ledger.weights_loaded(event.worker, event.weight_version)
        for grant in self._grants():
            yield grant

    @on
    async def evaluation_completed(self, event: EvaluationCompleted) -> Emits[CapacityGranted]:
        self.awaited -= {event.mode}
        for grant in self._grants():
            yield grant

    @on
    async def trajectory_exported(self, event: TrajectoryExported) -> Emits[CapacityGranted]:
        self.ledger = self.ledger.episode_ended(int(event.trajectory.group), event.trajectory.episode, exported=True)
        for grant in self._grants():
            yield grant

    @on
    async def episode_abandoned(self, event: EpisodeAbandoned) -> Emits[CapacityGranted]:
        if event.work.purpose == "train" and event.work.attempts_left == 0:
            self.ledger = self.ledger.episode_ended(int(event.work.group), event.work.episode, exported=False)
        for grant in self._grants():
            yield grant

    @on
    async def trajectory_dropped(self, event: TrajectoryDropped) -> Emits[CapacityGranted]:
        self.ledger = self.ledger.group_dropped(int(event.group))
        for grant in self._grants():
            yield grant

    @on
    async def batch_formed(self, event: BatchFormed) -> None:
        self.ledger = self.ledger.batch_formed(frozenset(event.group_numbers()))

    @on
    async def actor_failed(self, event: ActorFailed) -> Emits[CapacityGranted]:
        self.ledger = self.ledger.worker_gone(event.actor)
        for grant in self._grants():
            yield grant

    @on
    async def actor_stopped(self, event: ActorStopped) -> Emits[CapacityGranted]:
        self.ledger = self.ledger.worker_gone(event.actor)
        for grant in self._grants():
            yield grant

    @on
    async def run_stopping(self, _: RunStopping) -> None:
        self.stopped = True

    @on
    async def run_resumed(self, _: RunResumed) -> Emits[CapacityGranted]:
        self.stopped = False
        for grant in self._grants():
            yield grant

    def _grants(self) -> Iterator[CapacityGranted]:
        groups, _ = self.ledger.free_groups(self.config, self.batch_size, self.steps)
        if self.stopped or self.awaited or not groups:
            return
        first = self.ledger.granted
        self.ledger = self.ledger.granted_more(groups)
        yield CapacityGranted(first_group=first, groups=groups, weight_version=self.ledger.weight_version)

    def status(self) -> dict[str, float | str]:
        """Which bound binds, and what is ahead of the trained weights."""
        _, bound = self.ledger.free_groups(self.config, self.batch_size, self.steps)
        return {
            "bound": "stopped" if self.stopped else "baseline" if self.awaited else bound,
            "weight_version": self.ledger.weight_version,
            "running": len(self.ledger.running),
            "complete": len(self.ledger.complete),
            "in_batch": len(self.ledger.in_batch),
            "trained": self.ledger.trained,
        }
