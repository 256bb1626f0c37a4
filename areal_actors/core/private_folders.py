"""Folders that only their owner can enter: other local users read nothing in them, whatever the modes of the files.

A run's folder has completions, weights and keys. Files that a user writes with a command (`areal-actors export`, a
copied checkpoint) have the user's umask.
"""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from pathlib import Path

from areal_actors.core.errors import SetupError

MODE = 0o700


def make_private(path: Path) -> None:
    """Make a folder that only this user can enter, with its parents in the user's umask, or close one that is there.

    Raises:
        OSError: it cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(mode=MODE)
    if stat.S_IMODE(path.stat().st_mode) == MODE:
        return
    with suppress(OSError):
        path.chmod(MODE)
    if path.stat().st_mode & 0o077:
        sys.stderr.write(
            f"{path} can be read by other users of this machine: its file system or owner does not let it be closed\n"
        )


def make_or_keep_private(path: Path, option: str) -> None:
    """Make a folder that only this user can enter, or take one that is so already.

    One that others use is left as it is.

    Raises:
        SetupError: a folder that other users can enter, or a file, is there; the message names the option.
        OSError: it cannot be made.
    """
    if path.is_dir() and path.stat().st_mode & 0o077:
        raise SetupError(
            f"{option} {path}: other users of this machine may enter this folder; name a new one, or close it: chmod"
            f" 700 {path}"
        )
    if path.exists() and not path.is_dir():
        raise SetupError(f"{option} {path}: this is a file; name a folder, or none for a temporary one")
    make_private(path)


def is_own(path: Path) -> bool:
    """Returns True if this is a folder of this user, and no link."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def take_private(path: Path) -> None:
    """Make a private folder in a place where every user can make one, as `/dev/shm`.

    Raises:
        SetupError: another user has made a folder or a link of this name, and could read or replace what is written.
        OSError: it cannot be made.
    """
    with suppress(FileExistsError):
        path.mkdir(mode=MODE)
    if not is_own(path):
        raise SetupError(
            f"{path} was made by another user of this machine, who could read or replace the weights: have it removed,"
            " and start again"
        )
    path.chmod(MODE)
