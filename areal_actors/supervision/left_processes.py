"""Ends programs that an agent or a reward has started and left running.

A run's processes and all that they start carry a mark.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

MARK = "AREAL_RUN_FOLDER"
"""Environment variable with the folder of the run."""


def make_mark(folder: Path) -> dict[str, str]:
    """Environment of the processes of a run."""
    return {MARK: str(folder.resolve())}


def end_left_processes(folder: Path) -> list[str]:
    """Kill all processes of this user that carry the mark of a run, which has ended; returns their names and ids."""
    ended = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == str(folder.resolve()) and process.status() != psutil.STATUS_ZOMBIE:
                name = process.name()
                process.kill()
                ended.append(f"{name} ({process.pid})")
    return ended
