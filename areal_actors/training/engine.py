"""Protocol of training engines, which hold all tensor computation of the trainer. Engines never use the bus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from areal_actors.core.values import Row, WeightsLocation
from areal_actors.sequences.row_check import RowLimits


class TrainingEngine(Protocol):
    """Holds the model being trained and its optimizer."""

    weight_version: int
    """Version of the current weights: the number of steps, including those that changed no weight."""
    limits: RowLimits
    """The model's limits on training rows."""

    def step(self, rows: Sequence[Row]) -> dict[str, float]:
        """Take one optimizer step on a batch of rows and return its metrics; without rows, count a step that changes no weight.

        Raises:
            UntrainableBatch: no row has a trained token, or the loss or the gradient is not finite. The step is not counted, and
                weights and optimizer are unchanged.
            RanksLost: a process of a multi-process engine died (any method may raise it). The engine is then in its initial
                state, at version 0: `load` a checkpoint to continue.
        """
        ...

    def evaluate(self, rows: Sequence[Row]) -> dict[str, float]:
        """Loss and measures of rows under the current weights, which stay unchanged.

        Raises:
            EngineError: no row has a trained token, or a reward is not finite.
        """
        ...

    def publish(self, folder: str) -> WeightsLocation:
        """Write the current weights into a new folder for inference workers."""
        ...

    def checksum(self) -> str:
        """Checksum of the current weights, as `publish` returns it; empty if the engine has none."""
        ...

    def save(self, folder: str) -> None:
        """Write model (Hugging Face format), optimizer, schedule and random state."""
        ...

    def load(self, folder: str) -> None:
        """Load a checkpoint that `save` wrote.

        Raises:
            CheckpointError: something is missing or does not fit.
        """
        ...
