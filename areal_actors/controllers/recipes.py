"""A recipe for a loop, in a line."""

from __future__ import annotations

from pathlib import Path

from areal_actors.devices import detect_cuda
from areal_actors.recipe.load import load
from areal_actors.recipe.recipe import Recipe


def recipe(file: str | Path, *overrides: str) -> Recipe:
    """The recipe of a file, with settings such as `trainer.batch_size=4` laid over it, for the machine that this is.

    Raises:
        RecipeError: says everything that is wrong.
    """
    return load([Path(file)], overrides, detect_cuda()).recipe
