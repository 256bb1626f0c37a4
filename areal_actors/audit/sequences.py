"""Audit of sequences.

Rebuilds the sequences of each step from the log and compares their checksum with the reported one.
Keeps only the trajectories that are in no batch yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from areal_actors.audit.groups import Finding
from areal_actors.core.values import Trajectory
from areal_actors.messages import BatchFormed, BatchRefused, StepCompleted, TrajectoryDropped, TrajectoryExported
from areal_actors.sequences.credit import Credit
from areal_actors.sequences.sequence_check import SequenceLimits, batch_sequences
from areal_actors.sequences.step_metrics import sequences_checksum
from areal_bus.message import Message


class SequencesCheck:
    """A fold over the same events as `Audit`."""

    def __init__(self, credit: Credit) -> None:
        self.credit = credit
        self.checked = 0
        """Number of steps whose sequences were rebuilt."""
        self.waiting: dict[int, Trajectory] = {}
        """Trajectories by the sequence of their events."""
        self.expected: dict[int, str] = {}
        """TrainingSequence checksum of each batch in training, by the weight version that it is trained on."""

    def event(self, sequence: int, message: Message | None) -> Iterator[Finding]:
        """Fold the next event of the log."""
        if isinstance(message, TrajectoryExported):
            self.waiting[sequence] = message.trajectory
        elif isinstance(message, TrajectoryDropped):
            self._forget(message.episode)
        elif isinstance(message, BatchFormed):
            self._record_batch(message)
        elif isinstance(message, BatchRefused):
            # The sequences left out depend on the limits of the model; recomputing the step checks them.
            self.expected.pop(message.step, None)
        elif isinstance(message, StepCompleted) and (expected := self.expected.pop(message.step - 1, None)) is not None:
            self.checked += 1
            if expected != message.sequences_checksum:
                yield (
                    "sequences",
                    (
                        f"step {message.step} was given sequences with checksum {message.sequences_checksum}; its batch"
                        f" has {expected}"
                    ),
                )

    def _record_batch(self, batch: BatchFormed) -> None:
        places = [(index, member.sequence) for index, group in enumerate(batch.groups) for member in group]
        if all(place in self.waiting for _, place in places):
            trajectories = [(index, self.waiting[place]) for index, place in places]
            sequences = batch_sequences(batch, trajectories, self.credit, SequenceLimits())
            if not sequences.refused:
                self.expected[batch.step] = sequences_checksum(sequences.sequences)
        for member in (member for group in batch.groups for member in group):
            self._forget(member.episode)

    def _forget(self, episode: str) -> None:
        """Remove all trajectories of the episode, duplicates included."""
        self.waiting = {
            place: trajectory for place, trajectory in self.waiting.items() if trajectory.episode != episode
        }
