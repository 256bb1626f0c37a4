"""Runs a server as a child and ends it, with all its descendants, when this program's standard input closes.

`python -m areal_actors.generation.servers.process_guard COMMAND...`: the parent holds the other end of standard input,
so the server ends with its parent even if that is killed. The exit status is the server's. Shared memory that killed
processes leave behind is removed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

from areal_actors.core.agent_host.processes import ROUNDS, adopt_orphans, descendants

GRACE_SECONDS = 3.0
"""Time for the server to end by itself, and free its shared memory, before it is killed."""

SCAN_SECONDS = 2.0
"""Interval at which the server's shared memory is looked up: one that is killed from outside can no longer be asked."""
MAPPED = re.compile(r" (/dev/shm/[^/\s]+)$", re.MULTILINE)
"""Files of shared memory in the mappings of a process; published weights are in folders, and so are none of them."""


def main(command: list[str]) -> int:
    """Run the server; returns its exit status."""
    adopt_orphans()
    shared: set[str] = set()
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_end_with_parent, args=(server, shared), daemon=True).start()
    threading.Thread(target=_follow_shared_memory, args=(shared,), daemon=True).start()
    status = server.wait()
    _kill_descendants(shared)
    for file in shared.copy():
        Path(file).unlink(missing_ok=True)
    return status if status >= 0 else 128 - status


def _end_with_parent(server: subprocess.Popen[bytes], shared: set[str]) -> None:
    while os.read(0, 1):
        pass
    server.terminate()
    time.sleep(GRACE_SECONDS)
    _kill_descendants(shared)


def _follow_shared_memory(shared: set[str]) -> None:
    while True:
        shared |= _mapped_files()
        time.sleep(SCAN_SECONDS)


def _mapped_files() -> set[str]:
    """Returns the files of shared memory that the server and its descendants have mapped."""
    files: set[str] = set()
    for child in descendants(os.getpid()):
        with suppress(OSError):
            files.update(MAPPED.findall(Path(f"/proc/{child}/maps").read_text()))
    return files


def _kill_descendants(shared: set[str]) -> None:
    shared |= _mapped_files()
    for _ in range(ROUNDS):
        for child in descendants(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
