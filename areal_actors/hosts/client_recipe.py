"""The recipe of a joining host: the run's, with the settings that may differ on that host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from areal_actors.core.errors import RecipeError
from areal_actors.core.layers import Layer
from areal_actors.processes.remote_gateway import DIFFERS
from areal_actors.recipe.recipe import Recipe, recorded_recipe
from areal_actors.recipe.source import read_override

MAY_DIFFER = ("generation", "actors", "task.python", "task.processes", *DIFFERS)
"""Settings that may differ on each host."""


def recipe_here(data: Mapping[str, Any], settings: Sequence[str]) -> Recipe:
    """Returns the run's recipe with the settings of this host.

    Raises:
        RecipeError: a setting is invalid, or may not differ.
    """
    over = Layer({}, {})
    for setting in settings:
        if not any(f"{setting.partition('=')[0].strip()}.".startswith(f"{allowed}.") for allowed in MAY_DIFFER):
            raise RecipeError(
                f"{setting}: this setting is that of the run; on another host may differ: {', '.join(MAY_DIFFER)}"
            )
        over = read_override(setting).over(over)
    return recorded_recipe(over.over(Layer(dict(data), {})).data)
