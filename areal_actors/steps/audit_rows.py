"""The audit of rows: those that a step was given are made again from the log and have the checksum that the step reported.

Holds the trajectories that no batch has taken yet, and no others.
"""

from __future__ import annotations

from collections.abc import Iterator

from areal_actors.conversations.credit import Credit
from areal_actors.messages import BatchFormed, BatchRefused, StepCompleted, TrajectoryDropped, TrajectoryExported
from areal_actors.steps.audit_groups import Found
from areal_actors.steps.row_check import RowLimits, batch_rows
from areal_actors.steps.step_metrics import rows_checksum
from areal_actors.values import Trajectory
from bus.message import Message


class RowsCheck:
    """A fold beside that of `Audit`, over the same events."""

    def __init__(self, credit: Credit) -> None:
        self.credit = credit
        self.checked = 0
        """Steps whose rows were made again."""
        self.waiting: dict[int, Trajectory] = {}
        """By the place of their events."""
        self.expected: dict[int, str] = {}
        """The checksum of the rows of each batch that is being trained, by the weight version it is trained on."""

    def event(self, sequence: int, message: Message | None) -> Iterator[Found]:
        """Take in the next event of the log."""
        if isinstance(message, TrajectoryExported):
            self.waiting[sequence] = message.trajectory
        elif isinstance(message, TrajectoryDropped):
            self._forget(message.episode)
        elif isinstance(message, BatchFormed):
            self._formed(message)
        elif isinstance(message, BatchRefused):
            # What was left out depends on the limits of the model; computing the step again checks it.
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
        """The episode counts no more, nor what was exported of it a second time."""
        self.waiting = {place: trajectory for place, trajectory in self.waiting.items() if trajectory.episode != episode}
