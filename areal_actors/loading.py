"""Python code that a recipe names: agents, reward functions and the like, loaded where they run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from areal_actors.agent_host.faults import Refused
from areal_actors.agent_host.naming import load
from areal_actors.errors import RecipeError


def load_named(spec: str, root: Path) -> Any:
    """What `path.py:Name`, `package.module:Name` or `package.module.Name` names; paths and modules count from `root`.

    Raises:
        RecipeError: the name has none of these forms, its module is missing or raises, or has no such name.
    """
    try:
        return load(spec, root)
    except Refused as error:
        raise RecipeError(str(error)) from error
