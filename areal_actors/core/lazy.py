"""Modules that are loaded at their first use.

Commands that only read settings or list runs answer faster without them.
"""

from __future__ import annotations

import importlib
from typing import Any


class LazyModule:
    """Stands for a module; each name of it is looked up once."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        """Load the module, and keep the attribute."""
        value = getattr(importlib.import_module(self._name), name)
        setattr(self, name, value)
        return value
