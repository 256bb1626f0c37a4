"""A step of the trainer: untrainable rows are left out, and a step that changes no weight is still counted."""

from __future__ import annotations

from collections.abc import Sequence

from areal_actors.core.errors import UntrainableBatch
from areal_actors.core.values import Row, Value
from areal_actors.messages import BatchRefused
from areal_actors.sequences.row_check import BatchRows
from areal_actors.training.engine import TrainingEngine


class CountedStep(Value):
    """A step counted by the engine."""

    rows: Sequence[Row]
    """Trained rows; empty if the step was skipped."""
    metrics: dict[str, float]
    refused: BatchRefused | None = None
    """Rows or updates left out."""

    @property
    def skipped(self) -> bool:
        """True if the step changed no weight."""
        return not self.rows


def take_step(engine: TrainingEngine, found: BatchRows, step: int) -> CountedStep:
    """Take a step on the trainable rows; skip it if it can change no weight. Slow: run in a thread."""
    cause = "" if found.rows else "no row of the batch can be trained"
    if found.rows:
        try:
            metrics = engine.step(found.rows)
        except UntrainableBatch as error:
            cause = str(error)
        else:
            return _taken(step, found, metrics)
    engine.step(())
    refused = BatchRefused(step=step, rows=found.refused, trained_rows=0, cause=cause)
    return CountedStep(rows=(), metrics={"skipped": 1.0, **_counted(found)}, refused=refused)


def _taken(step: int, found: BatchRows, metrics: dict[str, float]) -> CountedStep:
    """Result of a step with at least one update."""
    skipped = int(metrics.get("skipped_updates", 0))
    if not skipped and not found.refused:
        return CountedStep(rows=found.rows, metrics=metrics)
    cause = f"{skipped} updates of the step were skipped: their loss or gradient was not finite" if skipped else ""
    refused = BatchRefused(step=step, rows=found.refused, trained_rows=len(found.rows), cause=cause)
    return CountedStep(rows=found.rows, metrics={**metrics, **_counted(found)}, refused=refused)


def _counted(found: BatchRows) -> dict[str, float]:
    return {"refused_rows": float(len(found.refused))}
