"""The place of a new model: the room on the disk, and a new folder that gets its name when it is whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from areal_actors.core.durable_files import MEBIBYTE, fsync_path
from areal_actors.core.errors import SetupError

Report = Callable[[str], None]
"""Takes lines about what is done."""
BYTES = {"float32": 4, "bfloat16": 2}
SMALL_FILES = 32 * MEBIBYTE
"""Room for tokenizer and configuration."""


def check_target(folder: Path) -> None:
    """Refuse a folder that exists.

    Raises:
        SetupError: it does, or something else has this name.
    """
    if folder.exists():
        raise SetupError(f"{folder}: exists already; name another folder, or remove it first")


def check_room(folder: Path, needed: int, what: str) -> None:
    """Refuse a disk without room.

    Raises:
        SetupError: fewer than `needed` bytes are free; states how many there are.
    """
    place = next(place for place in folder.absolute().parents if place.exists())
    if (free := shutil.disk_usage(place).free) < needed:
        need = f"{needed // MEBIBYTE:,} MB are needed for {what}"
        raise SetupError(
            f"{folder}: {need}, and {free // MEBIBYTE:,} MB are free on the disk of {place}; free space, or name"
            " another folder"
        )


@contextmanager
def partial_folder(folder: Path) -> Iterator[Path]:
    """Yields a new folder beside `folder`, which takes its place at the end; after an error nothing of it is left.

    Raises:
        SetupError: it cannot be written.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        move_into_place(partial, folder)
    except OSError as error:
        raise SetupError(f"{folder} cannot be written ({error.strerror or error}); name another folder") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def move_into_place(partial: Path, folder: Path) -> None:
    """Rename a finished folder, after its files are on the disk.

    One that has the final name is whole, also after a power failure.
    """
    for path in sorted(partial.iterdir()):
        fsync_path(path)
    partial.rename(folder)
    fsync_path(folder.parent)
