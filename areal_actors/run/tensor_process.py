"""A process of a run that holds tensors: the only kind that loads torch, unless somebody's own engine does.

Started by the supervisor as `python -m areal_actors.run.tensor_process RUN_FOLDER NAME`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec

from areal_actors.actor import Actor
from areal_actors.actors.reward_worker import RewardWorker
from areal_actors.actors.trainer import Trainer
from areal_actors.actors.trainer_history import TrainedHistory
from areal_actors.actors.trainer_parts import Progress
from areal_actors.conversations.credit import Credit
from areal_actors.engines.base import TrainingEngine
from areal_actors.engines.checkpoint_store import CheckpointStore
from areal_actors.engines.embedded_model import make_embedded_model
from areal_actors.engines.hub import model_folder
from areal_actors.engines.named import LIGHT_ENGINES, Maker
from areal_actors.engines.rank_group.group import RankGroup
from areal_actors.engines.ranks import SINGLE_PROCESS
from areal_actors.engines.reward_model import ModelScorer, RewardModel
from areal_actors.engines.settings import RewardModelSettings, TrainerSettings
from areal_actors.engines.torch_trainer import TorchTrainer
from areal_actors.engines.transformers import TransformersEngine
from areal_actors.engines.weight_folders import prune, shared_memory_folder, version_folder
from areal_actors.recipe.example_checks import examples_of, limit_of
from areal_actors.recipe.recipe import Recipe
from areal_actors.rewards import MODEL
from areal_actors.run.process import LIGHT, Builder, Place, acceptance_of, inference_worker, main
from areal_actors.steps.engine_mismatch import EngineMonitor
from areal_actors.text.example_rows import ExampleRows

SPARE_VERSIONS = 2
"""Versions kept beyond those a trained token can have, for inference workers that are late."""


class Preparation:
    """Makes or finds the model of a recipe and gives it to a training engine."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.model_bytes = 0
        """Of the model's weights on disk, once it is there."""

    def __call__(self, progress: Progress) -> TrainingEngine:
        """See `areal_actors.actors.trainer_parts.EngineFactory`."""
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
        engine = RankGroup if recipe.trainer.ranks > 1 else TorchTrainer
        return engine(
            folder,
            recipe.algorithm,
            recipe.trainer if not recipe.learns_from_examples() else msgspec.structs.replace(recipe.trainer, parity_rows=0),
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
    credit = Credit.of(task)
    lessons = lessons_of(place.recipe) if place.recipe.learns_from_examples() else None
    monitor = EngineMonitor(place.recipe.watchdog, place.recipe.staleness_gate.max_staleness)
    most = place.recipe.trainer.max_skipped_steps
    return Trainer(
        preparation,
        weights_folder,
        time.time,
        credit,
        lessons,
        monitor,
        max_skipped_steps=most,
        checkpoints=CheckpointStore(place.folder.path),
        step_history=TrainedHistory(repeats=_repeats(place.recipe.trainer)),
    )


def _repeats(settings: TrainerSettings) -> bool:
    """Whether a step that is taken again must give the same weights to the last bit."""
    if settings.retaken_steps == "auto":
        return SINGLE_PROCESS.device(settings.device).type == "cpu"
    return settings.retaken_steps == "exact"


def lessons_of(recipe: Recipe) -> ExampleRows:
    """The recipe's examples as rows; held-out ones before the first step, after the last, and every so many between."""
    examples = examples_of(recipe)
    evaluation = recipe.evaluation

    def due(weight_version: int) -> int:
        if weight_version == recipe.steps or (weight_version == 0 and evaluation.baseline != "none"):
            return evaluation.tasks
        between = weight_version and evaluation.every_steps and weight_version % evaluation.every_steps == 0
        return min(evaluation.tasks, evaluation.tasks_between) if between else 0

    return ExampleRows(examples.train, examples.held_out, scored=recipe.algorithm.head == "value", due=due, limit=limit_of(recipe))


def _reward_worker(place: Place) -> Actor:
    """One that scores with a trained model, or in processes of their own as elsewhere."""
    task = place.recipe.task
    if not task.reward.startswith(MODEL):
        return LIGHT["reward_worker"](place)
    settings = msgspec.convert(task.reward_options, RewardModelSettings)
    model = RewardModel(model_folder(task.reward.removeprefix(MODEL)), settings)
    scorer = ModelScorer(task.reward, model, settings, task.reward_timeout_seconds)
    return RewardWorker(scorer, concurrency=place.recipe.actors.reward_worker.concurrency, acceptance=acceptance_of(task))


ENGINES: dict[str, Maker] = {**LIGHT_ENGINES, "transformers": TransformersEngine}
"""Every engine that has a name."""
HEAVY: dict[str, Builder] = {
    **LIGHT,
    "trainer": _trainer,
    "inference_worker": inference_worker(ENGINES),
    "reward_worker": _reward_worker,
}
"""Every actor; those of `LIGHT` too, in case a recipe places them here."""

if __name__ == "__main__":
    main(HEAVY, sys.argv[1:])
