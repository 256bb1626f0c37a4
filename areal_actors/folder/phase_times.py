"""Seconds that each phase took, kept in the folder of a run: the time left of the same phase in the next run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from areal_actors.core.durable_files import atomic_write
from areal_actors.core.values import Value
from areal_actors.recipe.recipe import Recipe

FILE = "phases.json"


class PhaseTimes(Value):
    """Phases of one run that are over."""

    model: str
    engine: str
    seconds: dict[str, float]


def usual_times(recipe: Recipe, folder: Path) -> dict[str, float]:
    """Returns the seconds of each phase in the latest run beside this one with the same model and engine.

    Empty without any.
    """
    files = sorted(folder.parent.glob(f"*/{FILE}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for file in files:
        with suppress(OSError, msgspec.MsgspecError):
            times = msgspec.json.decode(file.read_bytes(), type=PhaseTimes)
            if (times.model, times.engine) == (recipe.model, recipe.generation.engine):
                return times.seconds
    return {}


def keep_times(recipe: Recipe, folder: Path, seconds: Mapping[str, float]) -> None:
    """Write the seconds of this run's phases; a folder that cannot be written loses only the estimates."""
    times = PhaseTimes(model=recipe.model, engine=recipe.generation.engine, seconds=dict(seconds))
    with suppress(OSError):
        atomic_write(folder / FILE, msgspec.json.encode(times))
