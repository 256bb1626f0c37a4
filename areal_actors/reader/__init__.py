"""Reads runs, live, finished or exported: as tables for pandas, Arrow and Parquet, and on the command line."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from areal_actors.reader.run import Run, open_run
    from areal_actors.reader.table import Table

__all__ = ["Run", "Table", "open_run"]
_MODULES = {"Run": "run", "Table": "table", "open_run": "run"}


def __getattr__(name: str) -> Any:
    """Load a name when it is used: `areal-actors runs` reads files alone, and needs neither bus nor tokenizers."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"areal_actors.reader.{_MODULES[name]}"), name)
