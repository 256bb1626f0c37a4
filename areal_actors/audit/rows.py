"""Audit of rows: rebuilds the rows of each step from the log and compares their checksum with the reported one.

Keeps only the trajectories that are in no batch yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from areal_actors.audit.groups import Finding
from areal_actors.core.values import Trajectory
from areal_actors.messages import BatchFormed, BatchRefused, StepCompleted, TrajectoryDropped, TrajectoryExported
from areal_actors.sequences.credit import Credit
from areal_actors.sequences.row_check import RowLimits, batch_rows
from areal_actors.sequences.step_metrics import rows_checksum
from bus.message import Message


class RowsCheck:
    """A fold over the same events as `Audit`."""

    def __init__(self, credit: Credit) -> None:
        self.credit = credit
        self.checked = 0
        """Number of steps whose rows were rebuilt."""
        self.waiting: dict[int, Trajectory] = {}
        """Trajectories by the sequence of their events."""
        self.expected: dict[int, str] = {}
        """Row checksum of each batch in training, by the weight version that it is trained on."""

    def event(self, sequence: int, message: Message | None) -> Iterator[Finding]:
        """Fold the next event of the log."""
        if isinstance(message, TrajectoryExported):
            self.waiting[sequence] = message.trajectory
        elif isinstance(message, TrajectoryDropped):
            self._forget(message.episode)
        elif isinstance(message, BatchFormed):
            self._formed(message)
        elif isinstance(message, BatchRefused):
            # The rows left out depend on the limits of the model; recomputing the step checks them.
            self.expected.pop(message.step, None)
        elif isinstance(message, StepCompleted) and (expected := self.expected.pop(message.step - 1, None)) is not None:
            self.checked += 1
            if expected != message.rows_checksum:
                yield (
                    "rows",
                    f"step {message.step} was given rows with checksum {message.rows_checksum}; those of its batch have {expected}",
                )

    def _formed(self, batch: BatchFormed) -> None:
        places = [(index, member.sequence) for index, group in enumerate(batch.groups) for member in group]
        if all(place in self.waiting for _, place in places):
            trajectories = [(index, self.waiting[place]) for index, place in places]
            found = batch_rows(batch, trajectories, self.credit, RowLimits())
            if not found.refused:
                self.expected[batch.step] = rows_checksum(found.rows)
        for member in (member for group in batch.groups for member in group):
            self._forget(member.episode)

    def _forget(self, episode: str) -> None:
        """Remove all trajectories of the episode, duplicates included."""
        self.waiting = {place: trajectory for place, trajectory in self.waiting.items() if trajectory.episode != episode}
