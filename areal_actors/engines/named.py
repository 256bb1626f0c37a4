"""Generation engines by their names in a recipe: those that come along, and anybody's class in a file.

Nothing here loads torch; who has engines that do hands them in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from areal_actors.engines.base import GenerationEngine
from areal_actors.engines.scripted import scripted_engine
from areal_actors.engines.settings import GenerationSettings
from areal_actors.errors import RecipeError, SetupError
from areal_actors.loading import load_named

Maker = Callable[[str, GenerationSettings], GenerationEngine]
"""An engine for the model of this folder; slow."""

LIGHT_ENGINES: Mapping[str, Maker] = {"scripted": scripted_engine}
"""Engines without tensors."""

PARTS = ("abilities", "weight_version", "generate", "load_weights", "take_counters", "close")
"""What a `GenerationEngine` has."""


def engine_maker(settings: GenerationSettings, engines: Mapping[str, Maker], root: Path) -> Callable[[str], GenerationEngine]:
    """What makes the engine that a recipe names, once the model's folder is known; a file's path counts from `root`.

    Raises:
        RecipeError: it is none of `engines`, and no class can be had from such a file.
    """
    make = engines[settings.engine] if settings.engine in engines else _named(settings.engine, root)

    def made(model_folder: str) -> GenerationEngine:
        engine = make(model_folder, settings)
        lacking = [part for part in PARTS if not hasattr(engine, part)]
        if lacking:
            raise SetupError(
                f"generation.engine: {settings.engine} has no {', '.join(lacking)}; "
                "give it all that areal_actors.engines.base.GenerationEngine names"
            )
        return engine

    return made


def _named(spec: str, root: Path) -> Maker:
    try:
        make: Maker = load_named(spec, root)
    except RecipeError as error:
        raise RecipeError(f"generation.engine: {error}") from error
    return make
