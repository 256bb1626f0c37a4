"""A batch is metadata: which trajectories a step trains, by their places in a run's log; their tokens are fetched where they are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from areal_actors.conversations.credit import Credit
from areal_actors.conversations.rows import rows_of
from areal_actors.messages import BatchFormed, Member
from areal_actors.steps.batching import TrajectoryInfo, TrajectoryTotals
from areal_actors.values import Row, Trajectory, Value
from bus.errors import LogUnavailable


class RolloutBatch(Value):
    """Whole groups for one step; a few dozen bytes per trajectory, whatever its length."""

    run: str
    """In whose log the trajectories lie."""
    step: int
    """The weight version that the controller had when the batch was formed."""
    groups: tuple[tuple[TrajectoryInfo, ...], ...]
    """References: episode, place in the log, number of sampled tokens, and the weight versions of the oldest and newest."""
    oldest_version: int
    """Tokens older than this weight version are masked out of the loss."""
    trained: TrajectoryTotals
    """In batches since the controller started, this one included."""
    dropped: TrajectoryTotals
    """Exported since the controller started and never in a batch."""
    filtered_groups: int = 0
    """Dropped by the filter since the batch before this one."""

    def references(self) -> list[TrajectoryInfo]:
        """All of them, group after group."""
        return [reference for group in self.groups for reference in group]

    def tokens(self) -> int:
        """How many were sampled."""
        return sum(reference.tokens for reference in self.references())

    def formed(self) -> BatchFormed:
        """The same, as the log of the run has it."""
        return BatchFormed(
            step=self.step,
            groups=tuple(tuple(Member(episode=one.episode, sequence=one.sequence) for one in group) for group in self.groups),
            oldest_version=self.oldest_version,
            trained_trajectories=self.trained.trajectories,
            trained_tokens=self.trained.tokens,
            dropped_trajectories=self.dropped.trajectories,
            dropped_tokens=self.dropped.tokens,
            filtered_groups=self.filtered_groups,
        )


class Trajectories(Protocol):
    """Where the trajectories of a batch are had: a `RolloutController`, or a `LogReader` on a machine of its own."""

    def trajectories(self, batch: RolloutBatch) -> list[Trajectory]:
        """One for each of `batch.references()`, in their order.

        Raises:
            LogUnavailable: one of them is not there.
        """
        ...


def batch_rows(batch: RolloutBatch, trajectories: Sequence[Trajectory], credit: Credit) -> list[Row]:
    """The rows that the loss sees, in the order of the batch.

    Raises:
        LogUnavailable: these are not the trajectories of this batch.
    """
    indices = [index for index, group in enumerate(batch.groups) for _ in group]
    rows: list[Row] = []
    for index, reference, trajectory in zip(indices, batch.references(), trajectories, strict=True):
        if trajectory.episode != reference.episode:
            raise LogUnavailable(
                f"position {reference.sequence} of the log of '{batch.run}' holds episode {trajectory.episode}, not {reference.episode}: "
                "the batch is of another run"
            )
        rows += rows_of(trajectory, index, batch.oldest_version, credit)
    return rows
