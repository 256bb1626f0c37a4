"""A process of a run that holds tensors: the only kind that loads torch, unless a custom engine does.

Started by the supervisor with the run's folder and its own name.
"""

from __future__ import annotations

import time

import msgspec

from areal_actors.processes.cpu_actors import CPU_ACTORS, acceptance_of, reward_worker_by_source
from areal_actors.processes.fold_actors import BuildContext, Builder
from areal_actors.processes.process import serve_actors
from areal_actors.processes.training_engine import EngineBuilder, example_sequences
from areal_actors.recipe.recipe import Recipe
from areal_actors.rewards import MODEL
from areal_actors.rewards.reward_model import ModelScorer, SequenceClassifier
from areal_actors.rewards.reward_worker import RewardWorker
from areal_actors.rewards.settings import RewardModelSettings
from areal_actors.runtime.actor import Actor
from areal_actors.sequences.credit import Credit
from areal_actors.training.checkpoint_store import CheckpointStore
from areal_actors.training.engine_mismatch import EngineMonitor
from areal_actors.training.ranks import SINGLE_PROCESS
from areal_actors.training.settings import TrainerSettings
from areal_actors.training.trainer import Trainer
from areal_actors.training.trainer_history import TrainedHistory
from areal_actors.training.trainer_sleep import EngineSleep
from areal_actors.weights.folders import kept_versions, prune, version_folder, versions_folder
from areal_actors.weights.model_hub import model_folder


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


def _reward_worker(context: BuildContext) -> Actor:
    """Returns a reward worker with a trained reward model, or with reward processes as on CPU."""
    if context.recipe.task.mix:
        return reward_worker_by_source(context, _reward_worker)
    task = context.recipe.task
    if not task.reward.startswith(MODEL):
        return CPU_ACTORS["reward_worker"](context)
    settings = msgspec.convert(task.reward_options, RewardModelSettings)
    model = SequenceClassifier(model_folder(task.reward.removeprefix(MODEL)), settings)
    scorer = ModelScorer(task.reward, model, settings, task.reward_timeout_seconds)
    return RewardWorker(
        scorer, concurrency=context.recipe.actors.reward_worker.concurrency, acceptance=acceptance_of(task)
    )


TORCH_ACTORS: dict[str, Builder] = {
    **CPU_ACTORS,
    "trainer": _trainer,
    "reward_worker": _reward_worker,
}
"""Builders of all actors; those of `CPU_ACTORS` too, in case a recipe places them here."""


def main(arguments: list[str]) -> None:
    """Serve the actors of a process with tensors."""
    serve_actors(TORCH_ACTORS, arguments)
