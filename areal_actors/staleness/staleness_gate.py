"""The staleness gate: grants capacity for groups so that none is trained too late."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from areal_actors.core.values import Value
from areal_actors.messages import (
    ActorFailed,
    ActorStopped,
    BatchFormed,
    CapacityGranted,
    ConcurrencyChanged,
    EngineLoad,
    EpisodeAbandoned,
    EvaluationCompleted,
    LimitDecided,
    OffPolicyChanged,
    RunResumed,
    RunStopping,
    StepCompleted,
    TrajectoryDropped,
    TrajectoryExported,
    WeightsLoaded,
    WeightsPublished,
)
from areal_actors.runtime.actor import Actor, on
from areal_actors.staleness.concurrency_limit import ConcurrencyLimit, initial_limit
from areal_actors.staleness.ledger import Bound, Ledger, StalenessGateConfig
from areal_actors.staleness.off_policy_guard import OffPolicyGuard


class GateState(Value):
    """Snapshot of a staleness gate."""

    ledger: Ledger
    awaited: frozenset[tuple[int, str]]
    stopped: bool
    limit: ConcurrencyLimit | None = None
    guard: OffPolicyGuard | None = None
    chosen: dict[str, int] = {}


class StalenessGate(Actor):
    """Grants capacity while no limit is reached.

    The gate opens with the first weights, or after their evaluation (sampled and greedy) if the run begins with one.
    Held-out episodes take no capacity. If training is synchronous, the gate also waits for later evaluations;
    `evaluations` is their interval in versions and their mode. No weights are published while they run, so they are
    exact. `chosen` has limits below those of `config`, by setting, which `LimitDecided` changes.
    """

    state_type = GateState

    def __init__(
        self,
        config: StalenessGateConfig,
        *,
        group_size: int,
        batch_size: int,
        steps: int,
        after_baseline: bool = False,
        evaluations: tuple[int, str] = (0, "sampled"),
        chosen: Mapping[str, int] | None = None,
    ) -> None:
        self.config = config
        self.batch_size = batch_size
        self.steps = steps
        self.ledger = Ledger(group_size=group_size)
        self.most = config.most_concurrent(batch_size)
        self.limit = initial_limit(batch_size, self.most) if config.max_concurrent == "auto" else None
        """Limit that follows the engines' load; None if it is fixed."""
        self.guard = OffPolicyGuard(max_staleness=config.max_staleness)
        """Bound of new groups: that of the recipe, or a lower one while steps are off policy."""
        self.awaited = {(0, "sampled"), (0, "greedy")} if after_baseline else set[tuple[int, str]]()
        """Pending evaluations by version and mode."""
        self.evaluated_every, self.evaluated_mode = evaluations if config.max_staleness == 0 else (0, "")
        self.stopped = False
        self.chosen = dict(chosen or {})

    def snapshot(self) -> GateState:
        """The ledger, pending evaluations, whether the run is stopping, and the adapted and chosen limits."""
        return GateState(
            ledger=self.ledger,
            awaited=frozenset(self.awaited),
            stopped=self.stopped,
            limit=self.limit,
            guard=self.guard,
            chosen=self.chosen,
        )

    def restore(self, state: GateState) -> None:
        """Continue from this state."""
        self.ledger, self.awaited, self.stopped = state.ledger, set(state.awaited), state.stopped
        if self.limit is not None:
            self.limit = state.limit or self.limit
        if state.guard is not None:
            self.guard = state.guard
        self.chosen.update((name, limit) for name, limit in state.chosen.items() if name in self.chosen)

    @on
    def weights_published(self, event: WeightsPublished) -> Iterator[CapacityGranted]:
        version = event.weight_version
        if (
            self.evaluated_every
            and self.ledger.weight_version < version < self.steps
            and version % self.evaluated_every == 0 < version
        ):
            self.awaited.add((version, self.evaluated_mode))
        self.ledger.weights_published(version)
        yield from self._grants()

    @on
    def step_completed(self, event: StepCompleted) -> Iterator[OffPolicyChanged | CapacityGranted]:
        config, before = self.config.guard, self.guard
        self.guard = before.after(event.step, event.metrics, config, self.config.max_staleness)
        if (self.guard.off_policy, self.guard.max_staleness) != (before.off_policy, before.max_staleness):
            outside = tuple(config.outside(event.metrics))
            yield OffPolicyChanged(
                step=event.step, outside=outside, max_staleness=self.guard.max_staleness, before=before.max_staleness
            )
            yield from self._grants()

    @on
    def weights_loaded(self, event: WeightsLoaded) -> Iterator[CapacityGranted]:
        self.ledger.weights_loaded(event.worker, event.weight_version)
        yield from self._grants()

    @on
    def evaluation_completed(self, event: EvaluationCompleted) -> Iterator[CapacityGranted]:
        self.awaited.discard((event.weight_version, event.mode))
        yield from self._grants()

    @on
    def limit_decided(self, event: LimitDecided) -> Iterator[CapacityGranted]:
        if event.setting in self.chosen:
            self.chosen = {**self.chosen, event.setting: event.value}
            yield from self._grants()

    @on
    def trajectory_exported(self, event: TrajectoryExported) -> Iterator[CapacityGranted | ConcurrencyChanged]:
        yield from self._end_episode(event.trajectory.group, event.trajectory.episode, exported=True)
        yield from self._grants()

    @on
    def episode_abandoned(self, event: EpisodeAbandoned) -> Iterator[CapacityGranted | ConcurrencyChanged]:
        if event.work.purpose == "train" and event.work.attempts_left == 0:
            yield from self._end_episode(event.work.group, event.work.episode, exported=False)
        yield from self._grants()

    @on
    def engine_load(self, event: EngineLoad) -> Iterator[CapacityGranted | ConcurrencyChanged]:
        if self.limit is not None:
            used = f"{event.running} running, {event.waiting} waiting, {event.kv_cache_usage:.0%} of the KV cache used"
            yield from self._continue_with(
                self.limit.level_changed(event.worker, event.level), f"{event.worker} is {event.level}: {used}"
            )
        yield from self._grants()

    @on
    def trajectory_dropped(self, event: TrajectoryDropped) -> Iterator[CapacityGranted]:
        self.ledger.group_dropped(int(event.group))
        yield from self._grants()

    @on
    def batch_formed(self, event: BatchFormed) -> None:
        self.ledger.batch_formed(frozenset(event.group_numbers()))

    @on
    def actor_gone(self, event: ActorFailed | ActorStopped) -> Iterator[CapacityGranted]:
        self.ledger.worker_gone(event.actor)
        self.limit = None if self.limit is None else self.limit.worker_gone(event.actor)
        yield from self._grants()

    @on
    def run_stopping(self, _: RunStopping) -> None:
        self.stopped = True

    @on
    def run_resumed(self, _: RunResumed) -> Iterator[CapacityGranted]:
        self.stopped = False
        yield from self._grants()

    @property
    def concurrent(self) -> int:
        """Number of groups that may run at once now."""
        groups = self.most if self.limit is None else self.limit.groups
        return min(groups, self.chosen.get("max_concurrent", groups))

    @property
    def max_staleness(self) -> int:
        """Staleness bound of new groups now."""
        return min(self.guard.max_staleness, self.chosen.get("max_staleness", self.guard.max_staleness))

    def _end_episode(self, group: str, episode: str, *, exported: bool) -> Iterator[ConcurrencyChanged]:
        """Record the end of an episode, which may be the end of its group."""
        running = len(self.ledger.running)
        self.ledger.episode_ended(int(group), episode, exported=exported)
        if self.limit is not None and len(self.ledger.running) < running:
            limit, full = self.limit.group_ended(limited=running >= self.limit.groups), self.limit.is_full()
            yield from self._continue_with(
                limit, "an engine is still full" if full else "a group has ended and the engines have room"
            )

    def _continue_with(self, limit: ConcurrencyLimit, reason: str) -> Iterator[ConcurrencyChanged]:
        """Continue with a limit."""
        before, self.limit = self.concurrent, limit
        if limit.groups != before:
            yield ConcurrencyChanged(groups=limit.groups, before=before, reason=reason)

    def _free_groups(self) -> tuple[int, Bound]:
        surplus = self.config.surplus_groups
        return self.ledger.free_groups(self.max_staleness, self.concurrent, self.batch_size, self.steps, surplus)

    def _grants(self) -> Iterator[CapacityGranted]:
        groups, _ = self._free_groups()
        if self.stopped or self.awaited or not groups:
            return
        first = self.ledger.granted
        self.ledger.grant(groups)
        yield CapacityGranted(first_group=first, groups=groups, weight_version=self.ledger.weight_version)

    def status(self) -> dict[str, float | str]:
        """Limiting bound, and groups ahead of the trained weights."""
        _, bound = self._free_groups()
        if self.awaited:
            bound = "evaluation" if self.ledger.weight_version > 0 else "baseline"
        return {
            "bound": "stopped" if self.stopped else bound,
            "weight_version": self.ledger.weight_version,
            "running": len(self.ledger.running),
            "max_concurrent": self.concurrent,
            "max_staleness": self.max_staleness,
            "complete": len(self.ledger.complete),
            "in_batch": len(self.ledger.in_batch),
            "trained": self.ledger.trained,
        }
