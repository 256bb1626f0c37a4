"""AReaL's programs on this system, with AReaL's names: `from areal_actors.compat.areal import PPOTrainer`.

docs/areal.md describes them. `python -m areal_actors.compat.areal program.py …` runs a program whose imports are still
`from areal import …`.
"""

from __future__ import annotations

import importlib
from typing import Any

from areal_actors.compat.areal.names import MEMBERS, location

__all__ = list(MEMBERS)


def __getattr__(name: str) -> Any:
    """Load a name where it is used first: an agent's process needs neither torch nor the trainer."""
    if name not in MEMBERS:
        raise AttributeError(
            f"areal_actors.compat.areal has no {name}; docs/areal.md lists the names of AReaL that it has"
        )
    module, member = location(name)
    loaded = importlib.import_module(module)
    return getattr(loaded, member) if member else loaded
