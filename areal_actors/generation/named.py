"""Generation engines by their names in a recipe.

Built-in ones, those of other distributions, and classes in the user's files.
An engine is imported once it is asked for, and torch with it if it needs that.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from areal_actors.core.errors import RecipeError, SetupError
from areal_actors.core.installed_parts import load_part
from areal_actors.generation.abilities import ABILITIES, ROUTES, unknown_abilities
from areal_actors.generation.engine import EnginePlace, GenerationEngine
from areal_actors.generation.engines import engine_descriptions, no_routes_complaint
from areal_actors.generation.settings import GenerationSettings

GenerationEngineFactory = Callable[..., GenerationEngine]
"""Creates an engine for the model in a folder with these settings; slow. If it has a parameter `place`, it gets an
`EnginePlace`."""

REQUIRED_MEMBERS = ("abilities", "weight_version", "generate", "load_weights", "take_counters", "close")
"""Attributes and methods of a `GenerationEngine`."""


def engine_factory(
    settings: GenerationSettings,
    root: Path,
    place: EnginePlace | None = None,
) -> Callable[[str], GenerationEngine]:
    """Returns a factory of the engine that a recipe names, to be called with the model's folder.

    File paths are relative to `root`.
    The factory raises SetupError if the engine lacks a member or has an unknown ability.

    Raises:
        RecipeError: it is none of our engines, and no class can be loaded from such a file.
    """
    own = engine_descriptions().get(settings.engine)
    try:
        make = load_part("engine", settings.engine, root) if own is None else pkgutil.resolve_name(own.factory)
    except RecipeError as error:
        raise RecipeError(f"generation.engine: {error}") from error

    placed: dict[str, Any] = {"place": place or EnginePlace()} if "place" in inspect.signature(make).parameters else {}

    def make_engine(model_folder: str) -> GenerationEngine:
        engine: GenerationEngine = make(model_folder, settings, **placed)
        missing = [name for name in REQUIRED_MEMBERS if not hasattr(engine, name)]
        if missing:
            raise SetupError(
                f"generation.engine: {settings.engine} has no {', '.join(missing)}; "
                "implement all of areal_actors.generation.engine.GenerationEngine"
            )
        if not ABILITIES.issuperset(engine.abilities):
            raise SetupError(f"generation.engine: {settings.engine} has the {unknown_abilities(engine.abilities)}")
        if place and place.routes == "on" and ROUTES not in engine.abilities:
            raise SetupError(f'trainer.routing_replay = "on": {no_routes_complaint(settings.engine)}')
        return engine

    return make_engine
