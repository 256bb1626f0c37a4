"""Loading of Python objects named in a recipe: agents, reward functions and the like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from areal_actors.core.agent_host.agent_loader import load
from areal_actors.core.agent_host.faults import AgentLoadError
from areal_actors.core.errors import RecipeError


def load_named(spec: str, root: Path) -> Any:
    """Returns the object `path.py:Name`, `package.module:Name` or `package.module.Name`.

    Paths and modules are relative to `root`.

    Raises:
        RecipeError: the name has none of these forms, or its module is missing, raises, or has no such name.
    """
    try:
        return load(spec, root)
    except AgentLoadError as error:
        raise RecipeError(str(error)) from error
