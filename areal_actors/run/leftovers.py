"""What a run that is killed as a whole leaves: weights in shared memory, and secrets of its bus. The next command removes them.

Whether a run is dead is decided by its locks alone: what a live run has is never touched.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from areal_actors.engines.weight_folders import lock_path, locked_folders, remove_all, shared_memory_path
from areal_actors.recipe.recipe import Recipe
from areal_actors.run_folder import RunFolder
from areal_actors.run_lock import LockHeld, holder, locked

MEBIBYTE = 1 << 20


def clean_up(runs: Path) -> list[str]:
    """Remove what dead runs have left: their weights in shared memory, and the secrets of those that were written to this folder.

    Returns a line for each.
    """
    return [*_weights(), *_secrets(runs)]


def report_clean_up(runs: Path) -> None:
    """Remove what dead runs have left, and print what that was."""
    for line in clean_up(runs):
        sys.stderr.write(f"{line}\n")


@contextmanager
def holding_weights(recipe: Recipe, folder: RunFolder) -> Iterator[None]:
    """Have others know that this run's weights are in use; remove them in the end.

    Raises:
        SetupError: shared memory keeps no locks.
    """
    lock = lock_path(shared_memory_path(recipe.run, folder.path))
    try:
        if not lock.parent.is_dir():
            yield
            return
        with locked(lock, remove=True):
            yield
    finally:
        remove_all(recipe.run, folder.path)
        folder.remove_secrets()


def _weights() -> Iterator[str]:
    for place in locked_folders():
        try:
            with locked(lock_path(place), seconds=0, remove=True):
                if (size := _remove(place)) is not None:
                    yield f"removed the weights that a killed run had left in {place} ({size / MEBIBYTE:,.1f} MiB)"
        except (LockHeld, OSError):
            continue


def _remove(place: Path) -> int | None:
    """Remove a folder of weights; its size in bytes, None if there was none."""
    if not place.is_dir():
        return None
    size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    shutil.rmtree(place, ignore_errors=True)
    return size


def _secrets(runs: Path) -> Iterator[str]:
    for announced in sorted({*runs.glob("*/bus.json"), *runs.glob("*/nats/nats-server.conf")}):
        folder = RunFolder(runs / announced.relative_to(runs).parts[0])
        if folder.live_supervisor() or holder(folder.nats / "nats-server.lock") is not None:
            continue
        if names := folder.remove_secrets():
            yield f"removed what opened the bus of run '{folder.path.name}', which is over: {', '.join(names)}"
