"""The batcher: forms batches of whole groups, oldest first, within the staleness bound."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from areal_actors.batching.assembler import BatchAssembler, BatcherConfig, Filter, Refusal, TrajectoryInfo
from areal_actors.batching.role_baselines import role_rewards, update_baselines
from areal_actors.messages import (
    BatchFormed,
    CapacityGranted,
    EpisodeAbandoned,
    FilterExhausted,
    OffPolicyChanged,
    RunForked,
    TrajectoryDropped,
    TrajectoryExported,
    TrajectoryRef,
    WeightsPublished,
)
from areal_actors.runtime.actor import Actor, Context, on
from areal_actors.sequences.build import EPISODE
from areal_actors.sequences.credit import Credit

BatcherEvent = TrajectoryDropped | BatchFormed | FilterExhausted


class Batcher(Actor):
    """Forms one batch per weight version, once it is published and enough groups are complete."""

    state_type = BatchAssembler

    def __init__(
        self,
        config: BatcherConfig,
        *,
        group_size: int,
        batch_size: int,
        max_staleness: int,
        steps: int,
        keeps: Filter | None = None,
        credit: Credit = EPISODE,
        baseline_decay: float | None = None,
    ) -> None:
        """`keeps` returns True for groups to train, given the rewards that `credit` assigns to their sequences.

        `baseline_decay`: of role-wise baselines; None if there are none.
        """
        self.config = config
        self.keeps = keeps
        self.credit = credit
        self.batch_size = batch_size
        self.most_staleness = max_staleness
        self.steps = steps
        self.baseline_decay = baseline_decay
        self.assembler = BatchAssembler(group_size=group_size)

    @property
    def max_staleness(self) -> int:
        """Maximum number of versions between a trained token and the weights.

        That of the recipe, or a lower one for the time being.
        """
        adapted = self.assembler.max_staleness
        return self.most_staleness if adapted is None else min(adapted, self.most_staleness)

    def snapshot(self) -> BatchAssembler:
        """Groups that are neither in a batch nor dropped, and the totals."""
        return self.assembler

    def restore(self, state: BatchAssembler) -> None:
        """Continue from this state."""
        self.assembler = state

    @on
    def capacity_granted(self, event: CapacityGranted) -> None:
        if self.config.exit_policy == "wait":
            self.assembler.record_grant(event.first_group, event.groups, event.weight_version)

    @on
    def trajectory_exported(self, event: TrajectoryExported, context: Context) -> Iterator[BatcherEvent]:
        trajectory = event.trajectory
        member = TrajectoryInfo.of(trajectory, context.sequence, self.credit)
        if self.baseline_decay is not None:
            member = msgspec.structs.replace(member, role_rewards=role_rewards(trajectory, self.credit))
        self.assembler.add_trajectory(int(trajectory.group), member)
        yield from self._advance()

    @on
    def episode_abandoned(self, event: EpisodeAbandoned) -> Iterator[BatcherEvent]:
        if event.work.purpose == "train" and event.work.attempts_left == 0:
            self.assembler.record_lost_episode(int(event.work.group), event.work.episode)
        yield from self._advance()

    @on
    def weights_published(self, event: WeightsPublished) -> Iterator[BatcherEvent]:
        self.assembler.weights_published(event.weight_version)
        yield from self._advance()

    @on
    def off_policy_changed(self, event: OffPolicyChanged) -> Iterator[BatcherEvent]:
        self.assembler.max_staleness = event.max_staleness
        yield from self._advance()

    @on
    def run_forked(self, event: RunForked) -> Iterator[BatcherEvent]:
        self.assembler.discard_groups(event.discarded_below)
        yield from self._advance()

    def _advance(self) -> Iterator[BatcherEvent]:
        refused = self.assembler.to_drop(self.config, self.max_staleness, self.keeps)
        if self.assembler.weight_version >= self.steps:
            surplus: dict[int, Refusal] = dict.fromkeys(self.assembler.complete, "surplus")
            refused = {**surplus, **refused}
        for number, reason in refused.items():
            for member in self.assembler.complete[number].members.values():
                yield TrajectoryDropped(episode=member.episode, group=str(number), reason=reason)
        filtered = self.assembler.filtered
        self.assembler.without(refused)
        if self.assembler.weight_version >= self.steps:
            return
        dynamic, bound = self.config.dynamic_batch, self.max_staleness
        if groups := self.assembler.next_batch(self.batch_size, max_staleness=bound, dynamic=dynamic):
            version, filtered_groups, oldest = (
                self.assembler.weight_version,
                self.assembler.filtered,
                self.assembler.oldest_sequence(),
            )
            self.assembler.form_batch(groups)
            yield BatchFormed(
                step=version,
                groups=tuple(tuple(map(self._reference, group.trajectories())) for group in groups),
                oldest_version=version - bound if self.config.exit_policy != "keep" else 0,
                trained_trajectories=self.assembler.trained.trajectories,
                trained_tokens=self.assembler.trained.tokens,
                dropped_trajectories=self.assembler.dropped.trajectories,
                dropped_tokens=self.assembler.dropped.tokens,
                filtered_groups=filtered_groups,
                oldest_sequence=oldest,
            )
        elif filtered < (most := self.config.max_filtered_batches * self.batch_size) <= self.assembler.filtered:
            yield FilterExhausted(reason=self._no_groups_left(most))

    def _reference(self, member: TrajectoryInfo) -> TrajectoryRef:
        """Returns the reference to a trajectory of a batch, and moves the baselines of its roles to its rewards."""
        baselines: dict[str, float] = {}
        if self.baseline_decay is not None:
            baselines = update_baselines(self.assembler.baselines, member.role_rewards, self.baseline_decay)
        return TrajectoryRef(episode=member.episode, sequence=member.sequence, baselines=baselines)

    def _no_groups_left(self, most: int) -> str:
        equal = "all the rewards of each were equal, so the tasks are solved or out of reach"
        setting, why = (
            ("filter", f"{self.config.filter} rejected them") if self.config.filter else ("dynamic_sampling", equal)
        )
        filtered = f"batcher.{setting} has dropped {most} groups since the last batch: {why}"
        return f"{filtered}; take other tasks, or raise batcher.max_filtered_batches"

    def status(self) -> dict[str, float | str]:
        """Number of complete and open groups, and the batch size."""
        return {
            "complete_groups": len(self.assembler.complete),
            "open_groups": len(self.assembler.open),
            "batch_size": self.batch_size,
            "batches_formed": self.assembler.batches_formed,
            "filtered_groups": self.assembler.filtered,
        }
