"""Loads a recipe for a hand-written loop."""

from __future__ import annotations

from pathlib import Path

from areal_actors.core.devices import detect_cuda
from areal_actors.core.errors import RecipeError
from areal_actors.recipe.load import load
from areal_actors.recipe.paths import find_recipe, is_file
from areal_actors.recipe.recipe import Recipe

DRAWN_BY_RUNS = ("mix", "curriculum")
"""Settings of `[task]` that decide which tasks a run draws."""


def recipe(*words: str | Path) -> Recipe:
    """Load recipe files with overrides such as `trainer.batch_size=4`, for this machine.

    As on the command line (`areal-actors run base.toml overlay.toml trainer.batch_size=4`): later files override
    earlier ones, settings override all. A word with `=` that names no file is a setting; a `Path` is always a file.

    Raises:
        RecipeError: no file is named, or the recipe is invalid; the message lists all errors.
    """
    files = [
        word if isinstance(word, Path) else find_recipe(word)
        for word in words
        if isinstance(word, Path) or is_file(word)
    ]
    if not files:
        raise RecipeError(
            "found no recipe among the arguments; name a TOML file, as in recipe('recipes/gsm8k_grpo.toml', 'steps=20')"
        )
    settings = [word for word in words if not isinstance(word, Path) and not is_file(word)]
    loaded = load(files, settings, detect_cuda()).recipe
    for name in DRAWN_BY_RUNS:
        if getattr(loaded.task, name):
            raise RecipeError(
                f"`task.{name}`: found one, but a hand-written loop chooses its tasks itself; leave it out"
            )
    return loaded
