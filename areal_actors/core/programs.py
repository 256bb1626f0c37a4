"""Commands in hints: they work where they are printed."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from areal_actors.core.command import COMMAND

CLONE = Path(__file__).parents[2] / "justfile"
"""Only a clone of the repository has it."""


USER_FOLDER = "AREAL_INVOKED_FROM"
"""Environment variable with the folder in which the user stands, where that is not the current one: `just` changes into
the clone."""
UV_RUN = "UV_RUN_RECURSION_DEPTH"
"""Environment variable of `uv run`, whose PATH is not that of the user's shell."""


def user_folder() -> Path:
    """Returns the folder in which the user types commands."""
    return Path(os.environ.get(USER_FOLDER) or Path.cwd())


def typed_path(path: Path) -> str:
    """Returns a path as it can be typed in the user's folder, quoted for a shell.

    It is relative to that folder if it is inside, else absolute.
    """
    whole, folder = Path(os.path.normpath(path.absolute())), user_folder()
    return shlex.quote(str(whole.relative_to(folder) if whole.is_relative_to(folder) else whole))


def program(name: str) -> str:
    """Returns the shortest command for a program of this interpreter's environment.

    That is its name if it is on the PATH, else its path.
    """
    beside_python, on_path = Path(sys.executable).with_name(name), shutil.which(name)
    if beside_python.exists():
        is_found = on_path is not None and UV_RUN not in os.environ and beside_python.samefile(on_path)
        return name if is_found else typed_path(beside_python)
    return f"{typed_path(Path(sys.executable))} -m areal_actors" if name == COMMAND and on_path is None else name


def environment_command(name: str) -> str:
    """Returns the command that makes the interpreter `.environments/NAME` with the package of this name.

    A clone has a command of its own, else it is pip's.
    """
    folder = f".environments/{name}"
    return (
        f"just environments {name}"
        if CLONE.exists()
        else f"python3 -m venv {folder} && {folder}/bin/pip install {name}"
    )
