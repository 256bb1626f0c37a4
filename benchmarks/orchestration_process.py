"""One process of the system under measurement.

Everything is real except the model, which answers immediately, and the gradient.
Started by `orchestration.py` as `python benchmarks/orchestration_process.py RUN_FOLDER NAME`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from areal_actors.core.values import TrainingSequence, WeightsLocation
from areal_actors.generation.engine import EngineCounters
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.generation.scripted.engine import ScriptedEngine, scripted_engine
from areal_actors.processes.cpu_actors import CPU_ACTORS
from areal_actors.processes.fold_actors import BuildContext
from areal_actors.processes.process import serve_actors
from areal_actors.runtime.actor import Actor
from areal_actors.training.checkpoint_store import CheckpointStore
from areal_actors.training.engine import Progress, TrainingEngine, sequence_limits
from areal_actors.training.trainer import Trainer

STEPS_TAKEN = "steps_taken"
VOCABULARY = 600
"""Vocabulary size of the embedded tokenizer."""
ANSWER_TOKENS = 16
FIRST_TOKEN = 300
"""First id of ordinary words of the embedded tokenizer."""


class InstantEngine(ScriptedEngine):
    """Yields the same sixteen tokens for every request, immediately."""

    def __init__(self) -> None:
        answer = [(FIRST_TOKEN + index, -1.0) for index in range(ANSWER_TOKENS)]
        super().__init__(lambda _prompt, _seed: answer, vocabulary_size=VOCABULARY)

    def take_counters(self) -> EngineCounters:
        """Return zero counters."""
        return EngineCounters()


class NoGradient:
    """A `TrainingEngine` that counts steps and computes no gradient."""

    def __init__(self, model: Path) -> None:
        self.weight_version = 0
        self.limits = sequence_limits(str(model))
        self.model = model

    def step(self, rows: Sequence[TrainingSequence]) -> dict[str, float]:
        """Count the step."""
        self.weight_version += 1
        return {"rows": float(len(rows))}

    def publish(self, folder: str) -> WeightsLocation:
        """Return a location without weights, with the real tokenizer."""
        return WeightsLocation(folder=folder, checksum="", model=str(self.model))

    def checksum(self) -> str:
        """Return an empty checksum."""
        return ""

    def save(self, folder: str) -> None:
        """Write a checkpoint with only the number of steps."""
        Path(folder).mkdir(parents=True)
        (Path(folder) / STEPS_TAKEN).write_text(str(self.weight_version))

    def load(self, folder: str) -> None:
        """Restore the number of steps."""
        self.weight_version = int((Path(folder) / STEPS_TAKEN).read_text())


def _trainer(context: BuildContext) -> Actor:
    def prepare(progress: Progress) -> TrainingEngine:
        progress("nothing", 0, 0, {})
        return NoGradient(context.folder.model)

    checkpoints = CheckpointStore(context.folder.path)
    return Trainer(prepare, lambda version: f"none/v{version}", time.time, checkpoints=checkpoints)


def _inference_worker(context: BuildContext) -> Actor:
    concurrency, settings = context.recipe.actors.inference_worker.concurrency, context.recipe.generation
    model = str(context.folder.model)

    def start(_: str) -> ScriptedEngine:
        return scripted_engine(model, settings) if settings.engine == "scripted" else InstantEngine()

    return InferenceWorker(start, name=context.instance, concurrency=concurrency)


def main(arguments: list[str]) -> None:
    """Serve the actors of a process: `[RUN_FOLDER, NAME]`."""
    serve_actors({**CPU_ACTORS, "trainer": _trainer, "inference_worker": _inference_worker}, arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
