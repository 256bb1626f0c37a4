"""A step of the trainer: rows that cannot be trained are left out, and a step that can change no weight is counted all the same."""

from __future__ import annotations

from collections.abc import Sequence

from areal_actors.engines.base import TrainingEngine
from areal_actors.errors import UntrainableBatch
from areal_actors.messages import BatchRefused
from areal_actors.steps.row_check import BatchRows
from areal_actors.values import Row, Value


class CountedStep(Value):
    """A step that the engine has counted."""

    rows: Sequence[Row]
    """Rows that it was taken on; none if it was skipped."""
    metrics: dict[str, float]
    refused: BatchRefused | None = None
    """What was left out of it."""

    @property
    def skipped(self) -> bool:
        """It changed no weight."""
        return not self.rows


def take_step(engine: TrainingEngine, found: BatchRows, step: int) -> CountedStep:
    """Take a step on the rows that can be trained; one that can change no weight is skipped. Slow: for a thread."""
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
    """A step that was taken, with all its updates or some."""
    skipped = int(metrics.get("skipped_updates", 0))
    if not skipped and not found.refused:
        return CountedStep(rows=found.rows, metrics=metrics)
    cause = f"{skipped} updates of the step were skipped: their loss or gradient was not finite" if skipped else ""
    refused = BatchRefused(step=step, rows=found.refused, trained_rows=len(found.rows), cause=cause)
    return CountedStep(rows=found.rows, metrics={**metrics, **_counted(found)}, refused=refused)


def _counted(found: BatchRows) -> dict[str, float]:
    return {"refused_rows": float(len(found.refused))}
