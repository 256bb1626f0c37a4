"""What is on the disk, and not only in the system's memory.

A nats-server confirms a message when it has written it, not when the disk has it: the end of the process takes nothing, a power
failure takes what was written since the last sync. Its files are on this machine, and a sync is of a file and not of a process, so
whoever needs the log on the disk syncs its files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def sync_store(folder: Path) -> int:
    """Return when everything written so far to the files of this folder is on the disk, and their names; returns how many files.

    A file that the server has removed meanwhile is passed over: what it held lies in another.

    Raises:
        OSError: the disk refuses; what it says is true of data that may be lost.
    """
    count = 0
    for path in _bottom_up(folder):
        with suppress(FileNotFoundError):
            sync(path)
            count += 1
    return count


def sync(path: Path) -> None:
    """Return when a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _bottom_up(folder: Path) -> Iterator[Path]:
    """Every file and folder, a folder after what it holds: its names count only with their content."""
    for place, _, names in os.walk(folder, topdown=False):
        yield from (Path(place) / name for name in names if not name.endswith((".lock", ".ports", ".log")))
        yield Path(place)
    yield folder.parent
