"""Makes `import areal` work.

Modules with AReaL's names have the members of this package, loaded when they are used.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from areal_actors.compat.areal.missing_names import missing_reason
from areal_actors.compat.areal.names import MODULES, WHOLE, names_of, place_of

FOLDER = Path(__file__).parent.parent / "alias"
"""Folder with a package `areal` that calls `install`; on `PYTHONPATH` for child processes."""


class MissingFinder(MetaPathFinder):
    """Finds no module that is not here, with the reason in the error."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Refuse the modules of `MISSING`.

        Raises:
            ModuleNotFoundError: it is one of them; the message has the reason.
        """
        del path, target
        if reason := missing_reason(fullname):
            raise ModuleNotFoundError(f"{fullname} is not here: {reason}", name=fullname)


def install() -> None:
    """Add the modules to this process and to the processes of reward functions that it starts.

    They take the place of an installed AReaL.
    """
    if str(FOLDER) not in sys.path:
        sys.path.insert(1, str(FOLDER))
    if not any(isinstance(finder, MissingFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, MissingFinder())
    for name, whole in WHOLE.items():
        sys.modules[name] = importlib.import_module(whole)
    for name in MODULES:
        module = ModuleType(name, f"AReaL's names, from {__package__}.")
        module.__path__ = []
        module.__getattr__ = _loader(name)  # type: ignore[method-assign]
        sys.modules[name] = module


def _loader(module: str) -> Callable[[str], Any]:
    def load(name: str) -> Any:
        inner = f"{module}.{name}"
        if inner in sys.modules:
            return sys.modules[inner]
        if (place := place_of(module, name)) is None:
            reason = missing_reason(inner)
            names = ", ".join(names_of(module)) or "none"
            raise AttributeError(
                f"{inner} is not here: {reason}"
                if reason
                else f"{module} has no {name} here; it has {names}. See docs/areal.md for the names of AReaL that exist"
            )
        loaded = importlib.import_module(place[0])
        return getattr(loaded, place[1]) if place[1] else loaded

    return load
