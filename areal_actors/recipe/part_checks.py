"""Validates the use of a part that another distribution brings: its options, and its own demands on the recipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from areal_actors.core.errors import RecipeError
from areal_actors.core.installed_parts import InstalledPart, PartKind, installed_parts
from areal_actors.core.trackers import TRACKERS
from areal_actors.generation.settings import ENGINES
from areal_actors.recipe.errors import Problems, decode
from areal_actors.recipe.recipe import Recipe
from areal_actors.recipe.source import Key, Layer
from areal_actors.rewards import REWARDS
from areal_actors.rewards.composition import WEIGHTED
from areal_actors.tasks.sources import READERS
from areal_actors.tokenization.tool_parsers.families import FORMATS


def part_problems(
    part: InstalledPart, recipe: Recipe, options: Mapping[str, Any], key: Key, options_key: Key
) -> Problems:
    """Yields what keeps a part from being used, and what its function `recipe_problems` yields, if it has one; imports it.

    Args:
        part: the part that the recipe names.
        recipe: the recipe.
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


def parts_beside_ours(kind: PartKind) -> list[InstalledPart]:
    """Returns the parts of other distributions that recipes can name: a name of ours stays ours."""
    ours: dict[PartKind, Iterable[str]] = {
        "engine": ENGINES,
        "reward": (*REWARDS, WEIGHTED),
        "tool_format": FORMATS,
        "tracker": TRACKERS,
        "reader": READERS,
    }
    return [part for name, part in installed_parts(kind).items() if name not in ours.get(kind, ())]


def settings_of(loaded: Any) -> type[msgspec.Struct] | None:
    """Returns the struct into which a part's options decode.

    The part itself, or what it names as `settings`; None for free options.
    """
    settings = (
        loaded if isinstance(loaded, type) and issubclass(loaded, msgspec.Struct) else getattr(loaded, "settings", None)
    )
    return settings if isinstance(settings, type) and issubclass(settings, msgspec.Struct) else None
