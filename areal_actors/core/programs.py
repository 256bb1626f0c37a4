"""Commands in hints: they work where they are printed."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

CLONE = Path(__file__).parents[2] / "justfile"
"""Only a clone of the repository has it."""


def program(name: str) -> str:
    """Returns the shortest command for a program of this interpreter's environment: its name if it is on the PATH, else its path."""
    here = Path(sys.executable).with_name(name)
    return name if shutil.which(name) == str(here) or not here.exists() else shlex.quote(os.path.relpath(here))


def environment_command(name: str) -> str:
    """Returns the command that makes the interpreter `.environments/NAME` with the package of this name: a clone's, or that of pip."""
    folder = f".environments/{name}"
    return f"just environments {name}" if CLONE.exists() else f"python3 -m venv {folder} && {folder}/bin/pip install {name}"
