"""Problems with the use of a part that another distribution brings: its options, and its own demands on the recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from areal_actors.core.decoding import decode
from areal_actors.core.errors import RecipeError
from areal_actors.core.installed_parts import InstalledPart
from areal_actors.core.layers import Key, Layer
from areal_actors.core.problems import Problems


def part_problems(
    part: InstalledPart, recipe: object, options: Mapping[str, Any], key: Key, options_key: Key
) -> Problems:
    """Yields what keeps a part from being used, and what its function `recipe_problems` yields; imports it.

    Args:
        part: the part that the recipe names.
        recipe: the recipe, for the part's function.
        options: the part's own table of the recipe.
        key: the setting that names the part.
        options_key: that of the table.
    """
    try:
        loaded = part.load()
    except RecipeError as error:
        yield key, str(error)
        return
    if (settings := settings_of(loaded)) is not None:
        _, complaints = decode(Layer(dict(options), {}), settings)
        yield from ((options_key, complaint) for complaint in complaints)
    if hasattr(loaded, "recipe_problems"):
        yield from loaded.recipe_problems(recipe)


def settings_of(loaded: Any) -> type[msgspec.Struct] | None:
    """Returns the struct into which a part's options decode.

    The part itself, or what it names as `settings`; None for free options.
    """
    settings = (
        loaded if isinstance(loaded, type) and issubclass(loaded, msgspec.Struct) else getattr(loaded, "settings", None)
    )
    return settings if isinstance(settings, type) and issubclass(settings, msgspec.Struct) else None
