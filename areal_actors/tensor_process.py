"""A process of a run that holds tensors: the only kind that loads torch, unless somebody's own engine does.

Started by the supervisor as `python -m areal_actors.tensor_process RUN_FOLDER NAME`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from areal_actors.actor import Actor
from areal_actors.actors.trainer import Progress, Trainer
from areal_actors.credit import Credit
from areal_actors.engines.base import TrainingEngine
from areal_actors.engines.embedded_model import make_embedded_model
from areal_actors.engines.hub import model_folder
from areal_actors.engines.named import LIGHT_ENGINES, Maker
from areal_actors.engines.torch_trainer import TorchTrainer
from areal_actors.engines.transformers import TransformersEngine
from areal_actors.engines.weight_folders import prune, shared_memory_folder, version_folder
from areal_actors.process import LIGHT, Builder, Place, inference_worker, main

SPARE_VERSIONS = 2
"""Versions kept beyond those a trained token can have, for inference workers that are late."""


class Preparation:
    """Makes or finds the model of a recipe and gives it to a training engine."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.model_bytes = 0
        """Of the model's weights on disk, once it is there."""

    def __call__(self, progress: Progress) -> TrainingEngine:
        """See `areal_actors.actors.trainer.Preparation`."""
        recipe = self.place.recipe
        if recipe.model == "embedded":
            folder = str(self.place.folder.model)

            def warming(done: int, total: int, metrics: dict[str, float]) -> None:
                progress("warm start", done, total, {"loss": metrics["loss"]})

            if not self.place.folder.model.exists():
                make_embedded_model(folder, recipe.warm_start, recipe.seed, recipe.trainer.threads, warming)
        else:
            progress("loading the model", 0, 1, {})
            folder = model_folder(recipe.model)
        self.model_bytes = sum(path.stat().st_size for path in Path(folder).glob("*.safetensors"))
        return TorchTrainer(
            folder,
            recipe.algorithm,
            recipe.trainer,
            total_steps=recipe.steps,
            temperature=recipe.sampling.temperature,
            max_staleness=recipe.staleness_gate.max_staleness,
            seed=recipe.seed,
        )


def _trainer(place: Place) -> Actor:
    preparation = Preparation(place)
    keep = place.recipe.staleness_gate.max_staleness + SPARE_VERSIONS

    def weights_folder(version: int) -> str:
        root = shared_memory_folder(place.recipe.run, place.folder.path, needed_bytes=preparation.model_bytes * (keep + 1))
        prune(root, keep)
        return str(version_folder(root, version))

    task = place.recipe.task
    credit = Credit(discount=task.turn_discount, branch=task.branch_credit, style=task.export_style)
    return Trainer(preparation, weights_folder, time.time, credit)


ENGINES: dict[str, Maker] = {**LIGHT_ENGINES, "transformers": TransformersEngine}
"""Every engine that has a name."""
HEAVY: dict[str, Builder] = {**LIGHT, "trainer": _trainer, "inference_worker": inference_worker(ENGINES)}
"""Every actor; those of `LIGHT` too, in case a recipe places them here."""

if __name__ == "__main__":
    main(HEAVY, sys.argv[1:])
