"""What an agent's process has started, found through Linux's /proc, and how all of it ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ADOPT_ORPHANS = 36
"""Option of prctl."""
ROUNDS = 3
"""Of looking for descendants: one that starts others while it is looked for is met in the next."""


def adopt_orphans() -> None:
    """Stay the ancestor of whatever is started from here, also where its own parent ends first."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(ADOPT_ORPHANS, 1)


def children(pid: int) -> Iterator[int]:
    """Living children of a process; none where there is no /proc."""
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, listed.read_text().split()):
                if not _is_zombie(child):
                    yield child


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def descendants(pid: int) -> list[int]:
    """Everything that a process has started and that still runs, in whatever group or session."""
    found = list(children(pid))
    for child in found:
        found.extend(children(child))
    return found


def kill_tree(pid: int) -> None:
    """Kill a process that leads a group, its group, and all its descendants; unless it is this one, it starts no more meanwhile."""
    if pid != os.getpid():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    for _ in range(ROUNDS):
        if not (found := descendants(pid)):
            break
        for child in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
