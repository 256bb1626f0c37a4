"""Finds the descendants of an agent's process through Linux's /proc, and kills them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ADOPT_ORPHANS = 36
"""prctl option PR_SET_CHILD_SUBREAPER."""
ROUNDS = 3
"""Number of searches for descendants: processes started during one search are found in the next."""


def adopt_orphans() -> None:
    """Become the subreaper of all descendants, including those whose parent exits first."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(ADOPT_ORPHANS, 1)


def children(pid: int) -> Iterator[int]:
    """Living children of a process; none without /proc, or if it has ended."""
    threads: list[Path] = []
    with suppress(OSError):  # a process may end between two of these steps
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    for thread in threads:
        with suppress(OSError):
            for child in map(int, (thread / "children").read_text().split()):
                if not _is_zombie(child):
                    yield child


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def descendants(pid: int) -> list[int]:
    """All running descendants of a process, in any process group or session."""
    pids = list(children(pid))
    for child in pids:
        pids.extend(children(child))
    return pids


def kill_tree(pid: int) -> None:
    """Kill a group leader, its group and all its descendants; it is stopped first, unless it is this process."""
    if pid != os.getpid():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    for _ in range(ROUNDS):
        if not (pids := descendants(pid)):
            break
        for child in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
