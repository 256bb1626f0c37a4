"""Syncing the log to disk.

nats-server confirms a message when it has written it, before it is synced: a crash of the process loses nothing, a
power failure loses writes since the last sync. fsync acts on files, not on processes, so another process on this
machine can sync the server's files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def sync_store(folder: Path) -> int:
    """Sync all files and folders of this folder to disk; returns their number.

    A file that the server removed meanwhile is skipped: its content is in another file.

    Raises:
        OSError: a sync failed; data may be lost.
    """
    count = 0
    for path in _bottom_up(folder):
        with suppress(FileNotFoundError):
            sync(path)
            count += 1
    return count


def sync(path: Path) -> None:
    """Sync a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _bottom_up(folder: Path) -> Iterator[Path]:
    """Yield every file and folder, each folder after its content, so that no synced name refers to unsynced content."""
    for place, _, names in os.walk(folder, topdown=False):
        yield from (Path(place) / name for name in names if not name.endswith((".lock", ".ports", ".log")))
        yield Path(place)
    yield folder.parent
