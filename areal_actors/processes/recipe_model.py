"""The model of a recipe: a folder that it names, one of the hub, or the embedded one.

The embedded one is made once and kept beside the runs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from areal_actors.core.lazy import LazyModule
from areal_actors.embedded.settings import EMBEDDED
from areal_actors.recipe.recipe import Recipe
from areal_actors.weights.model_hub import model_folder

if TYPE_CHECKING:
    from areal_actors.embedded import kept_models
    from areal_actors.embedded.warm_start import Progress
else:  # it loads torch, which a model of another kind does not need
    kept_models = LazyModule("areal_actors.embedded.kept_models")

SHOWN_EVERY = 100
"""Supervised steps between two progress lines."""


def model_of(recipe: Recipe, show: Progress | None = None) -> str:
    """Returns the Hugging Face folder of the recipe's model, made or downloaded if missing.

    `show` takes the progress of making it.
    """
    if recipe.model != EMBEDDED:
        return model_folder(recipe.model)
    models = Path(recipe.folder).absolute() / "models"
    return kept_models.kept_model(models, recipe.warm_start, recipe.seed, recipe.trainer.threads, show or _show)


def _show(done: int, total: int, metrics: dict[str, float]) -> None:
    if done % SHOWN_EVERY == 0 or done == total:
        sys.stdout.write(f"making the embedded model: {done} of {total} steps, loss {metrics['loss']:.3f}\n")
        sys.stdout.flush()
