"""A trainer that repeats recorded steps: built as the run built it, without inference and without a bus."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.audit.recomputation import RecomputeProgress
from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import StepCompleted, TrainerProgress, WeightsPublished
from areal_actors.processes.fold_actors import BuildContext
from areal_actors.processes.training_engine import EngineBuilder, example_sequences
from areal_actors.recipe.recipe import Recipe
from areal_actors.sequences.credit import Credit
from areal_actors.training.checkpoint_store import CheckpointStore
from areal_actors.training.trainer import Trainer
from areal_actors.vision.files import ImageFolder
from areal_bus.message import Message

OF_STEPS = ("steps", "seed", "trainer", "algorithm", "sampling")
"""Settings that a step follows from."""
OF_CREDIT = ("turn_discount", "branch_credit", "export_style", "baseline_over", "reward_weights")
"""Those of `[task]`."""


def step_settings(recipe: dict[str, Any]) -> tuple[Any, ...]:
    """Returns the settings that a step follows from, to compare recipes of one run."""
    task = recipe.get("task", {})
    return (*(recipe.get(name) for name in OF_STEPS), *(task.get(name) for name in OF_CREDIT))


def make_trainer(
    recipe: dict[str, Any], folder: RunFolder, checkpoints: CheckpointStore, weights_folder: Callable[[int], str]
) -> Trainer:
    """Returns the trainer of a recipe, with the initial model and the images of the run's folder."""
    decoded = msgspec.convert(recipe, Recipe)
    trainer = Trainer(
        EngineBuilder(BuildContext(recipe=decoded, folder=folder, instance="trainer-0")),
        weights_folder,
        float,
        Credit.of(decoded.task),
        example_sequences(decoded),
        max_skipped_steps=decoded.trainer.max_skipped_steps,
        checkpoints=checkpoints,
    )
    trainer.images = ImageFolder.of_run(folder.path)
    return trainer


def newest_folder(scratch: Path, version: int) -> str:
    """Returns the folder of a version; older ones are removed, since only the checksum is needed."""
    for earlier in scratch.glob("v*"):
        shutil.rmtree(earlier, ignore_errors=True)
    return str(scratch / f"v{version}")


def progress_of(emitted: Message) -> RecomputeProgress | None:
    """Returns what a message of the trainer reports; None for others."""
    match emitted:
        case TrainerProgress():
            return RecomputeProgress(
                phase=f"{emitted.phase} {emitted.done}/{emitted.total}" if emitted.total else emitted.phase
            )
        case WeightsPublished():
            return RecomputeProgress(version=emitted.weight_version, checksum=emitted.location.checksum)
        case StepCompleted():
            return RecomputeProgress(
                version=emitted.step if emitted.weights_checksum else -1,
                checksum=emitted.weights_checksum,
                step=emitted.step,
                sequences_checksum=emitted.sequences_checksum,
                metrics=emitted.metrics,
            )
    return None
