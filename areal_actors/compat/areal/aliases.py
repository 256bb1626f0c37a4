"""Makes `import areal` work.

Modules with AReaL's names have the members of this package, loaded when they are used.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from areal_actors.compat.areal.names import MODULES, WHOLE, location

FOLDER = Path(__file__).parent.parent / "alias"
"""Folder with a package `areal` that calls `install`; on `PYTHONPATH` for child processes."""


def install() -> None:
    """Add the modules to this process and to the processes of reward functions that it starts.

    They take the place of an installed AReaL.
    """
    if str(FOLDER) not in sys.path:
        sys.path.insert(1, str(FOLDER))
    for name, whole in WHOLE.items():
        sys.modules[name] = importlib.import_module(whole)
    for name, members in MODULES.items():
        module = ModuleType(name, f"AReaL's names, from {__package__}.")
        module.__path__ = []
        module.__getattr__ = _loader(name, members)  # type: ignore[method-assign]
        sys.modules[name] = module


def _loader(module: str, members: tuple[str, ...]) -> Callable[[str], Any]:
    def load(name: str) -> Any:
        inner = f"{module}.{name}"
        if inner in sys.modules:
            return sys.modules[inner]
        if name not in members:
            names = ", ".join(members) or "none"
            raise AttributeError(
                f"{module} has no {name} here; it has {names}. See docs/areal.md for the names of AReaL that exist"
            )
        place, member = location(name)
        loaded = importlib.import_module(place)
        return getattr(loaded, member) if member else loaded

    return load
