"""One process of the system under measurement: everything real but the model, which answers at once, and the gradient.

Started by `orchestration.py` as `python benchmarks/orchestration_process.py RUN_FOLDER NAME`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from areal_actors.actor import Actor
from areal_actors.actors.inference_worker import InferenceWorker
from areal_actors.actors.trainer import Trainer
from areal_actors.actors.trainer_parts import Progress
from areal_actors.engines.base import EngineCounters, TrainingEngine
from areal_actors.engines.checkpoint_store import CheckpointStore
from areal_actors.engines.row_limits import row_limits
from areal_actors.engines.scripted import ScriptedEngine
from areal_actors.run.process import CPU_ACTORS, BuildContext, main
from areal_actors.values import Row, WeightsLocation

STEPS_TAKEN = "steps_taken"
VOCABULARY = 600
"""Of the embedded tokenizer."""
ANSWER_TOKENS = 16
FIRST_TOKEN = 300
"""Ids from here on are ordinary words of the embedded tokenizer."""


class InstantEngine(ScriptedEngine):
    """Says the same sixteen tokens to everybody, at once."""

    def __init__(self) -> None:
        answer = [(FIRST_TOKEN + index, -1.0) for index in range(ANSWER_TOKENS)]
        super().__init__(lambda _prompt, _seed: answer, vocabulary_size=VOCABULARY)

    def take_counters(self) -> EngineCounters:
        """Nothing worth counting."""
        return EngineCounters()


class NoGradient:
    """See `TrainingEngine`: takes every batch and learns nothing from it."""

    def __init__(self, model: Path) -> None:
        self.weight_version = 0
        self.limits = row_limits(str(model))
        self.model = model

    def step(self, rows: Sequence[Row]) -> dict[str, float]:
        """Count."""
        self.weight_version += 1
        return {"rows": float(len(rows))}

    def publish(self, folder: str) -> WeightsLocation:
        """There are no weights; the tokenizer is real."""
        return WeightsLocation(folder=folder, checksum="", model=str(self.model))

    def checksum(self) -> str:
        """None: there are no weights."""
        return ""

    def save(self, folder: str) -> None:
        """A checkpoint with nothing in it but the number of steps."""
        Path(folder).mkdir(parents=True)
        (Path(folder) / STEPS_TAKEN).write_text(str(self.weight_version))

    def load(self, folder: str) -> None:
        """Go on counting from there."""
        self.weight_version = int((Path(folder) / STEPS_TAKEN).read_text())


def _trainer(context: BuildContext) -> Actor:
    def prepare(progress: Progress) -> TrainingEngine:
        progress("nothing", 0, 0, {})
        return NoGradient(context.folder.model)

    checkpoints = CheckpointStore(context.folder.path)
    return Trainer(prepare, lambda version: f"none/v{version}", time.time, checkpoints=checkpoints)


def _inference_worker(context: BuildContext) -> Actor:
    concurrency = context.recipe.actors.inference_worker.concurrency
    return InferenceWorker(lambda _: InstantEngine(), name=context.instance, concurrency=concurrency)


if __name__ == "__main__":
    main({**CPU_ACTORS, "trainer": _trainer, "inference_worker": _inference_worker}, sys.argv[1:])
