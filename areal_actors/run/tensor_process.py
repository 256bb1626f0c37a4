"""A process of a run that holds tensors: the only kind that loads torch, unless a custom engine does.

Started by the supervisor as `python -m areal_actors.run.tensor_process RUN_FOLDER NAME`.
"""

from __future__ import annotations

import sys
import time

import msgspec
import torch

from areal_actors.embedded.kept_models import copy_model
from areal_actors.embedded.transformers import TransformersEngine
from areal_actors.embedded.warm_start import Progress as WarmStartProgress
from areal_actors.generation.named import ENGINES_WITHOUT_TORCH, GenerationEngineFactory
from areal_actors.recipe.checks import EMBEDDED
from areal_actors.recipe.example_checks import examples_of, limit_of
from areal_actors.recipe.recipe import Recipe
from areal_actors.rewards import MODEL
from areal_actors.rewards.reward_model import ModelScorer, SequenceClassifier
from areal_actors.rewards.reward_worker import RewardWorker
from areal_actors.rewards.settings import RewardModelSettings
from areal_actors.run.process import CPU_ACTORS, BuildContext, Builder, acceptance_of, inference_worker, main
from areal_actors.run.served_model import model_of
from areal_actors.runtime.actor import Actor
from areal_actors.sequences.credit import Credit
from areal_actors.supervised.example_sequences import ExampleSequences
from areal_actors.training.checkpoint_store import CheckpointStore
from areal_actors.training.distributed.group import RankGroup
from areal_actors.training.engine import Progress, TrainingEngine
from areal_actors.training.engine_mismatch import EngineMonitor
from areal_actors.training.ranks import SINGLE_PROCESS
from areal_actors.training.settings import TrainerSettings
from areal_actors.training.torch_trainer import TorchTrainer
from areal_actors.training.trainer import Trainer
from areal_actors.training.trainer_history import TrainedHistory
from areal_actors.training.trainer_sleep import EngineSleep
from areal_actors.weights.folders import kept_versions, prune, version_folder, versions_folder
from areal_actors.weights.model_hub import model_folder
from areal_actors.weights.weight_files import parameter_count


class EngineBuilder:
    """Makes or finds the model of a recipe and creates the training engine with it."""

    def __init__(self, context: BuildContext) -> None:
        self.context = context
        self.model_bytes = 0
        """Bytes of one published version, once the model exists."""

    def __call__(self, progress: Progress) -> TrainingEngine:
        """Make or find the model, and return an engine that trains it; see `areal_actors.training.engine.EngineFactory`."""
        recipe = self.context.recipe
        progress("preparing the embedded model" if recipe.model == EMBEDDED else "loading the model", 0, 0, {})
        folder = self._model(lambda done, total, metrics: progress("warm start", done, total, {"loss": metrics["loss"]}))
        self.model_bytes = parameter_count(folder) * getattr(torch, recipe.trainer.published_dtype).itemsize
        engine = RankGroup if recipe.trainer.ranks > 1 else TorchTrainer
        return engine(
            folder,
            recipe.algorithm,
            recipe.trainer if not recipe.learns_from_examples() else msgspec.structs.replace(recipe.trainer, logprob_check_sequences=0),
            total_steps=recipe.steps,
            temperature=recipe.sampling.temperature,
            max_staleness=recipe.staleness_gate.max_staleness,
            seed=recipe.seed,
        )

    def _model(self, warm_start_progress: WarmStartProgress) -> str:
        """Returns the model's folder; an embedded model is copied into the run, which may be moved."""
        recipe, copied = self.context.recipe, self.context.folder.model
        if recipe.model == EMBEDDED and copied.exists():
            return str(copied)
        found = model_of(recipe, warm_start_progress)
        if recipe.model != EMBEDDED:
            return found
        copy_model(found, copied)
        return str(copied)


def _trainer(context: BuildContext) -> Actor:
    recipe, path = context.recipe, context.folder.path
    make_engine = EngineBuilder(context)
    keep = kept_versions(recipe.staleness_gate.max_staleness)

    def weights_folder(version: int) -> str:
        root = versions_folder(recipe.run, path, make_engine.model_bytes * (keep + 1), recipe.trainer.weights_folder)
        prune(root, keep)
        return str(version_folder(root, version))

    return Trainer(
        make_engine,
        weights_folder,
        time.time,
        Credit.of(recipe.task),
        example_sequences(recipe),
        EngineMonitor(recipe.watchdog, recipe.staleness_gate.max_staleness),
        max_skipped_steps=recipe.trainer.max_skipped_steps,
        checkpoints=CheckpointStore(path),
        step_history=TrainedHistory(repeats=_repeats(recipe.trainer)),
        engine_sleep=_engine_sleep(recipe),
    )


def _engine_sleep(recipe: Recipe) -> EngineSleep | None:
    """Returns what has the inference workers release their memory during each step; None if they keep it."""
    if recipe.generation.sleep != "on" or recipe.learns_from_examples():
        return None
    workers = [f"inference_worker-{number}" for number in range(recipe.actors.inference_worker.count)]
    return EngineSleep(workers, recipe.watchdog.load_seconds, time.monotonic)


def _repeats(settings: TrainerSettings) -> bool:
    """Returns True if a repeated step must give bit-identical weights."""
    if settings.retaken_steps == "auto":
        return SINGLE_PROCESS.device(settings.device).type == "cpu" and not settings.compile
    return settings.retaken_steps == "exact"


def example_sequences(recipe: Recipe) -> ExampleSequences | None:
    """Returns the recipe's examples as rows; held-out ones are due before the first step, after the last, and periodically between.

    None if the recipe learns from episodes.
    """
    if not recipe.learns_from_examples():
        return None
    examples = examples_of(recipe)
    evaluation = recipe.evaluation

    def due(weight_version: int) -> int:
        if weight_version == recipe.steps or (weight_version == 0 and evaluation.baseline != "none"):
            return evaluation.tasks
        between = weight_version and evaluation.every_steps and weight_version % evaluation.every_steps == 0
        return min(evaluation.tasks, evaluation.periodic_tasks) if between else 0

    return ExampleSequences(examples.train, examples.held_out, scored=recipe.algorithm.head == "value", due=due, limit=limit_of(recipe))


def _reward_worker(context: BuildContext) -> Actor:
    """Returns a reward worker with a trained reward model, or with reward processes as on CPU."""
    task = context.recipe.task
    if not task.reward.startswith(MODEL):
        return CPU_ACTORS["reward_worker"](context)
    settings = msgspec.convert(task.reward_options, RewardModelSettings)
    model = SequenceClassifier(model_folder(task.reward.removeprefix(MODEL)), settings)
    scorer = ModelScorer(task.reward, model, settings, task.reward_timeout_seconds)
    return RewardWorker(scorer, concurrency=context.recipe.actors.reward_worker.concurrency, acceptance=acceptance_of(task))


ENGINES: dict[str, GenerationEngineFactory] = {**ENGINES_WITHOUT_TORCH, "transformers": TransformersEngine}
"""All engines with a name."""
TORCH_ACTORS: dict[str, Builder] = {
    **CPU_ACTORS,
    "trainer": _trainer,
    "inference_worker": inference_worker(ENGINES),
    "reward_worker": _reward_worker,
}
"""Builders of all actors; those of `CPU_ACTORS` too, in case a recipe places them here."""

if __name__ == "__main__":
    main(TORCH_ACTORS, sys.argv[1:])
