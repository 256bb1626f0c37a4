"""Locks that end with the process that holds them, so that a reused process id is never mistaken for a live run.

Each is an `flock` on a file. Python opens files so that no child process inherits them, and the kernel releases a lock
when its holder ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from areal_actors.core.errors import SetupError

LOCK_WAIT_SECONDS = 0.3
"""Maximum wait for a lock: a process that only checks a lock holds it for a shorter time, a live run for longer."""
RETRY_SECONDS = 0.02
NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}


class LockHeld(Exception):
    """Raised when another process holds a lock; `pid` is its process id, 0 if unknown."""

    def __init__(self, path: Path, pid: int) -> None:
        super().__init__(f"{path} is held by process {pid}")
        self.pid = pid


@contextmanager
def lock_file(path: Path, *, seconds: float = LOCK_WAIT_SECONDS, remove: bool = False) -> Iterator[None]:
    """Hold the lock of a file, which is created; `remove` deletes it afterwards.

    Raises:
        LockHeld: another process still holds it after `seconds`.
        SetupError: the file system does not support locks.
        OSError: the file cannot be written.
    """
    descriptor = _acquire(path, time.monotonic() + seconds)
    try:
        yield
    finally:
        if remove:
            path.unlink(missing_ok=True)
        os.close(descriptor)


def holder(path: Path) -> int | None:
    """Returns the process id of the holder of a lock, 0 if unknown; None if the lock is free."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _pid(path)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None


def share(path: Path) -> int:
    """Hold a shared lock until this process ends; returns its descriptor."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def _acquire(path: Path, deadline: float) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_there(descriptor, path):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
                return descriptor
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise LockHeld(path, _pid(path)) from None
            time.sleep(RETRY_SECONDS)
        except OSError as error:
            os.close(descriptor)
            if error.errno in NO_LOCKS:
                raise SetupError(
                    f"the file system of {path.parent} does not support locks ({error.strerror}), without which two"
                    " runs of one name would corrupt each other: set folder to another disk, or mount it with `flock`"
                    " support"
                ) from error
            raise
        os.close(descriptor)


def _is_there(descriptor: int, path: Path) -> bool:
    """True if the locked file still has this name: its last holder may have deleted it meanwhile."""
    try:
        return os.fstat(descriptor).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False


def _pid(path: Path) -> int:
    try:
        return int(path.read_text() or 0)
    except (OSError, ValueError):
        return 0
