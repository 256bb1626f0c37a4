"""The batcher: whole groups become batches, oldest first; the exit door of the staleness gate."""

from __future__ import annotations

from collections.abc import Iterator

from areal_actors.actor import Actor, Emits, Turn, on
from areal_actors.conversations.credit import Credit
from areal_actors.conversations.rows import EPISODE
from areal_actors.messages import (
    BatchFormed,
    EpisodeAbandoned,
    GroupsUsedUp,
    Member,
    TrajectoryDropped,
    TrajectoryExported,
    WeightsPublished,
)
from areal_actors.steps.batching import Assembly, BatcherConfig, Exported, Filter, Refusal

Moves = TrajectoryDropped | BatchFormed | GroupsUsedUp


class Batcher(Actor):
    """Forms one batch per weight version, when the trainer has published it and enough groups are complete."""

    state_type = Assembly

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
    ) -> None:
        """`keeps` says which groups are worth training, by the rewards that `credit` gives their rows."""
        self.config = config
        self.keeps = keeps
        self.credit = credit
        self.batch_size = batch_size
        self.max_staleness = max_staleness
        self.steps = steps
        self.assembly = Assembly(group_size=group_size)

    def snapshot(self) -> Assembly:
        """Every group that is neither in a batch nor dropped, and the tallies."""
        return self.assembly

    def restore(self, state: Assembly) -> None:
        """Go on from there."""
        self.assembly = state

    @on
    async def trajectory_exported(self, event: TrajectoryExported, turn: Turn) -> Emits[TrajectoryDropped | BatchFormed | GroupsUsedUp]:
        trajectory = event.trajectory
        self.assembly = self.assembly.exported(int(trajectory.group), Exported.of(trajectory, turn.sequence, self.credit))
        for said in self._moves():
            yield said

    @on
    async def episode_abandoned(self, event: EpisodeAbandoned) -> Emits[TrajectoryDropped | BatchFormed | GroupsUsedUp]:
        if event.work.purpose == "train" and event.work.attempts_left == 0:
            self.assembly = self.assembly.lost(int(event.work.group), event.work.episode)
        for said in self._moves():
            yield said

    @on
    async def weights_published(self, event: WeightsPublished) -> Emits[TrajectoryDropped | BatchFormed | GroupsUsedUp]:
        self.assembly = self.assembly.weights_published(event.weight_version)
        for said in self._moves():
            yield said

    def _moves(self) -> Iterator[Moves]:
        refused = self.assembly.to_drop(self.config, self.max_staleness, self.keeps)
        if self.assembly.weight_version >= self.steps:
            surplus: dict[int, Refusal] = dict.fromkeys(self.assembly.complete, "surplus")
            refused = {**surplus, **refused}
        for number, reason in refused.items():
            for member in self.assembly.complete[number].members.values():
                yield TrajectoryDropped(episode=member.episode, group=str(number), reason=reason)
        filtered = self.assembly.filtered
        self.assembly = self.assembly.without(refused)
        if self.assembly.weight_version >= self.steps:
            return
        if groups := self.assembly.next_batch(self.batch_size, dynamic=self.config.dynamic_batch):
            version, filtered_groups, oldest = self.assembly.weight_version, self.assembly.filtered, self.assembly.oldest_sequence()
            self.assembly = self.assembly.formed(groups)
            yield BatchFormed(
                step=version,
                groups=tuple(
                    tuple(Member(episode=member.episode, sequence=member.sequence) for _, member in sorted(group.members.items()))
                    for group in groups
                ),
                oldest_version=version - self.max_staleness if self.config.exit_policy != "keep" else 0,
                trained_trajectories=self.assembly.trained.trajectories,
                trained_tokens=self.assembly.trained.tokens,
                dropped_trajectories=self.assembly.dropped.trajectories,
                dropped_tokens=self.assembly.dropped.tokens,
                filtered_groups=filtered_groups,
                oldest_sequence=oldest,
            )
        elif filtered < (most := self.config.max_filtered_batches * self.batch_size) <= self.assembly.filtered:
            yield GroupsUsedUp(reason=self._used_up(most))

    def _used_up(self, most: int) -> str:
        equal = "all the rewards of each were equal, so the tasks are solved or out of reach"
        why = equal if self.config.filter == "signal" else f"{self.config.filter} refused them"
        return (
            f"batcher.filter has dropped {most} groups since the last batch: {why}; take other tasks, or raise batcher.max_filtered_batches"
        )

    def status(self) -> dict[str, float | str]:
        """How many groups are complete of those a batch needs."""
        return {
            "complete_groups": len(self.assembly.complete),
            "open_groups": len(self.assembly.open),
            "batch_size": self.batch_size,
            "batches_formed": self.assembly.batches_formed,
            "filtered_groups": self.assembly.filtered,
        }
