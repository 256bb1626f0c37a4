"""The training engine and the examples of a run, made from its recipe.

The trainer's process uses them, and one that repeats its steps.
"""

from __future__ import annotations

import msgspec
import torch

from areal_actors.embedded.kept_models import copy_model
from areal_actors.embedded.settings import EMBEDDED
from areal_actors.embedded.warm_start import Progress as WarmStartProgress
from areal_actors.processes.fold_actors import BuildContext
from areal_actors.processes.recipe_model import model_of
from areal_actors.recipe.examples import examples_of, limit_of
from areal_actors.recipe.recipe import Recipe
from areal_actors.supervised.example_sequences import ExampleSequences
from areal_actors.training.distributed.group import RankGroup
from areal_actors.training.engine import Progress, TrainingEngine
from areal_actors.training.torch_trainer import TorchTrainer
from areal_actors.weights.weight_files import parameter_count


class EngineBuilder:
    """Makes or finds the model of a recipe and creates the training engine with it."""

    def __init__(self, context: BuildContext) -> None:
        self.context = context
        self.model_bytes = 0
        """Bytes of one published version, once the model exists."""

    def __call__(self, progress: Progress) -> TrainingEngine:
        """Make or find the model, and return an engine that trains it.

        See `areal_actors.training.engine.EngineFactory`.
        """
        recipe = self.context.recipe
        progress("preparing the embedded model" if recipe.model == EMBEDDED else "loading the model", 0, 0, {})
        folder = self._model(
            lambda done, total, metrics: progress("warm start", done, total, {"loss": metrics["loss"]})
        )
        self.model_bytes = parameter_count(folder) * getattr(torch, recipe.trainer.published_dtype).itemsize
        engine = RankGroup if recipe.trainer.ranks > 1 else TorchTrainer
        return engine(
            folder,
            recipe.algorithm,
            (
                recipe.trainer
                if not recipe.learns_from_examples()
                else msgspec.structs.replace(recipe.trainer, logprob_check_sequences=0)
            ),
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
        model = model_of(recipe, warm_start_progress)
        if recipe.model != EMBEDDED:
            return model
        copy_model(model, copied)
        return str(copied)


def example_sequences(recipe: Recipe) -> ExampleSequences | None:
    """Returns the recipe's examples as rows.

    Held-out ones are due before the first step, after the last, and periodically between.
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

    return ExampleSequences(
        examples.train, examples.held_out, scored=recipe.algorithm.head == "value", due=due, limit=limit_of(recipe)
    )
