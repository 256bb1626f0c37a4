"""Experiment trackers that a run can be sent to: ours, and those that other distributions bring; `track/` sends it."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from areal_actors.core.installed_parts import group_of, installed_parts

TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")
"""Names of trackers, of their Python modules, and of their packages."""
FIND = """
import importlib.metadata, importlib.util, sys
group, *names = sys.argv[1:]
brought = {point.name for point in importlib.metadata.entry_points(group=group)}
specs = {name: importlib.util.find_spec(name) for name in names if name not in brought}
print(*(name for name, spec in specs.items() if spec is None or spec.origin is None))
"""
FIND_SECONDS = 120.0


def known_trackers() -> tuple[str, ...]:
    """Returns the names of ours, and of those that are installed here."""
    return (*TRACKERS, *installed_parts("tracker"))


def interpreter(python: str) -> str:
    """Returns the path of an interpreter as in `track.python`; empty is this one."""
    return str(Path(python).expanduser()) if python else sys.executable


def missing_trackers(names: tuple[str, ...], python: str) -> list[str]:
    """Returns the trackers that an interpreter (empty: this one) cannot import; nothing is imported.

    A folder `wandb` or `mlruns` in the current directory, which such libraries leave behind, is no library: it has no
    origin.

    Raises:
        OSError: the interpreter cannot be started.
        subprocess.SubprocessError: it fails.
    """
    if python:
        command = [interpreter(python), "-c", FIND, group_of("tracker"), *names]
        return subprocess.run(command, capture_output=True, text=True, timeout=FIND_SECONDS, check=True).stdout.split()
    specs = {name: find_spec(name) for name in names if name not in installed_parts("tracker")}
    return [name for name, spec in specs.items() if spec is None or spec.origin is None]


def install_hint(names: list[str], python: str) -> str:
    """Returns the sentence about trackers that are not installed, with the command that installs them."""
    pip = f"{python} -m pip" if python else "pip"
    where = f" in {python}" if python else ""
    return (
        f"{' and '.join(names)} {'are' if len(names) > 1 else 'is'} not installed{where}; `{pip} install"
        f" {' '.join(names)}`"
    )
