"""The sources of a recipe's mixture, each as a recipe of its own, so that one source is read as any other recipe."""

from __future__ import annotations

import msgspec

from areal_actors.core.values import SamplingParams
from areal_actors.recipe.recipe import Recipe


def source_recipes(recipe: Recipe) -> dict[str, Recipe]:
    """Returns the recipe of each source by its name; a recipe without a mixture is its only one, under an empty name.

    Raises:
        ValidationError: `sampling` of a source has a setting that `[sampling]` lacks, or another type.
    """
    if not recipe.task.mix:
        return {"": recipe}
    stated = msgspec.structs.asdict(recipe.sampling)
    return {
        source.name: msgspec.structs.replace(
            recipe,
            task=recipe.task.of_source(source),
            sampling=msgspec.convert({**stated, **source.sampling}, SamplingParams, str_keys=True),
        )
        for source in recipe.task.mix
    }


def source_weights(recipe: Recipe) -> dict[str, float]:
    """Returns the weight of each source by its name; a recipe without a mixture is its only one."""
    return {source.name: source.weight for source in recipe.task.mix} or {"": 1.0}
