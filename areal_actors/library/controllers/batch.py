"""A batch as metadata: references to the trajectories of a step in a run's log.

Tokens are fetched where they are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from areal_actors.batching.assembler import TrajectoryInfo, TrajectoryTotals
from areal_actors.core.values import TrainingSequence, Trajectory, Value
from areal_actors.messages import BatchFormed, TrajectoryRef
from areal_actors.sequences.build import sequences_of
from areal_actors.sequences.credit import Credit
from areal_actors.vision.files import ImageFolder
from areal_bus.errors import LogUnavailable


class RolloutBatch(Value):
    """Whole groups for one step; a few dozen bytes per trajectory, independent of its length."""

    run: str
    """Run whose log has the trajectories."""
    step: int
    """Weight version of the controller when the batch was formed."""
    groups: tuple[tuple[TrajectoryInfo, ...], ...]
    """References: episode, sequence in the log, number of sampled tokens, and the oldest and newest weight versions."""
    oldest_version: int
    """Tokens older than this weight version are masked out of the loss."""
    trained: TrajectoryTotals
    """Trajectories and tokens in batches since the controller started, including this one."""
    dropped: TrajectoryTotals
    """Trajectories and tokens exported since the controller started and in no batch."""
    filtered_groups: int = 0
    """Groups dropped by the filter since the previous batch."""
    numbers: tuple[int, ...] = ()
    """Number of each group, as `submit` returned it: a loop that keeps them knows which tasks were trained."""

    def references(self) -> list[TrajectoryInfo]:
        """Returns all references, group after group."""
        return [reference for group in self.groups for reference in group]

    def tokens(self) -> int:
        """Returns the number of sampled tokens."""
        return sum(reference.tokens for reference in self.references())

    def to_event(self) -> BatchFormed:
        """Returns the batch as an event for the log of the run."""
        return BatchFormed(
            step=self.step,
            groups=tuple(
                tuple(TrajectoryRef(episode=trajectory.episode, sequence=trajectory.sequence) for trajectory in group)
                for group in self.groups
            ),
            oldest_version=self.oldest_version,
            trained_trajectories=self.trained.trajectories,
            trained_tokens=self.trained.tokens,
            dropped_trajectories=self.dropped.trajectories,
            dropped_tokens=self.dropped.tokens,
            filtered_groups=self.filtered_groups,
        )


class Trajectories(Protocol):
    """Source of the trajectories of a batch: a `RolloutController`, or a `LogReader` on another machine."""

    def trajectories(self, batch: RolloutBatch) -> list[Trajectory]:
        """Returns one trajectory for each of `batch.references()`, in order.

        Raises:
            LogUnavailable: one of them is missing.
        """
        ...


def batch_sequences(
    batch: RolloutBatch, trajectories: Sequence[Trajectory], credit: Credit, run_folder: Path | None = None
) -> list[TrainingSequence]:
    """Returns the sequences for the loss, in the order of the batch; images are loaded from `run_folder`.

    Raises:
        LogUnavailable: these are not the trajectories of this batch.
    """
    indices = [index for index, group in enumerate(batch.groups) for _ in group]
    sequences: list[TrainingSequence] = []
    for index, reference, trajectory in zip(indices, batch.references(), trajectories, strict=True):
        if trajectory.episode != reference.episode:
            raise LogUnavailable(
                f"position {reference.sequence} of the log of '{batch.run}' holds episode {trajectory.episode}, not"
                f" {reference.episode}: the batch belongs to another run"
            )
        sequences += sequences_of(trajectory, index, batch.oldest_version, credit)
    if run_folder is None:
        return sequences
    folder = str(ImageFolder.of_run(run_folder).path)
    return [
        msgspec.structs.replace(sequence, image_folder=folder) if sequence.images else sequence
        for sequence in sequences
    ]
