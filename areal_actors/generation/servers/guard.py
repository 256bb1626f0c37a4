"""Runs a server as a child and ends it, with all its descendants, when this program's standard input closes.

`python -m areal_actors.generation.servers.guard COMMAND...`: the parent holds the other end of standard input, so the server ends
with its parent even if that is killed. The exit status is the server's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

from areal_actors.core.agent_host.processes import ROUNDS, adopt_orphans, descendants

GRACE_SECONDS = 3.0
"""Time for the server to end by itself, and free its shared memory, before it is killed."""


def main(command: list[str]) -> int:
    """Run the server; returns its exit status."""
    adopt_orphans()
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_end_with_parent, args=(server,), daemon=True).start()
    status = server.wait()
    _kill_descendants()
    return status if status >= 0 else 128 - status


def _end_with_parent(server: subprocess.Popen[bytes]) -> None:
    while os.read(0, 1):
        pass
    server.terminate()
    time.sleep(GRACE_SECONDS)
    _kill_descendants()


def _kill_descendants() -> None:
    for _ in range(ROUNDS):
        for child in descendants(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
