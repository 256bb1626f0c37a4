"""Modules by which the parts of this package describe themselves, found by their name in the folder of each part.

A new part adds a file to its own folder, and no other file names it. Parts of other distributions are found by their
entry points instead; see `installed_parts`.
"""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).parents[1]


@cache
def own_modules(name: str) -> tuple[ModuleType, ...]:
    """Returns the modules of this name in the folders of the package, at any depth, by their paths; imports them."""
    files = sorted(PACKAGE.rglob(f"{name}.py"))
    return tuple(
        importlib.import_module(".".join((PACKAGE.name, *file.relative_to(PACKAGE).with_suffix("").parts)))
        for file in files
    )
