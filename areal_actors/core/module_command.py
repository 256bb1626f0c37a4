"""The command that starts a process with a module of this package as its program.

As `python -m`, with two differences. Modules of the current folder are found last, by what loads them, so that a file
there with the name of one of Python's own (`queue.py`) replaces nothing. And Python collects no cyclic garbage while
modules are loaded, which takes a sixth of the time that torch and transformers need.
"""

from __future__ import annotations

import gc
import importlib
import sys
from pathlib import Path
from types import ModuleType


def module_command(module: str, *arguments: str) -> list[str]:
    """Returns the command of a process that calls `main(arguments)` of a module, and exits with what that returns."""
    return [sys.executable, "-P", __file__, module, *arguments]


def load_module(name: str) -> ModuleType:
    """Import a module without collections meanwhile."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        if collects:
            gc.enable()


if __name__ == "__main__":
    clone = Path(__file__).parents[2]  # one that is not installed
    sys.path += [str(clone), str(clone / "bus")]
    program = load_module(sys.argv[1])
    gc.freeze()  # modules stay: no collection looks at them again
    sys.exit(program.main(sys.argv[2:]))
