"""Faults of processes and files. A stopped process is always resumed, even if this process dies meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

import psutil

GO_SECONDS = 0.1
"""Pause between two bursts of a slow disk."""
_BURSTS = """\
( i=0
  while [ $i -lt "$1" ]
  do
    kill -STOP "$2" || exit 0
    sleep "$3"
    kill -CONT "$2" || exit 0
    sleep "$4"
    i=$((i+1))
  done ) > /dev/null 2>&1 &
"""


def kill(pid: int) -> None:
    """Send SIGKILL."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def hold(pid: int, seconds: float, times: int = 1) -> None:
    """Pause a process for this many seconds, this many times.

    A detached shell does it, since it outlives this process: a stopped process cannot notice that its parent has died.
    """
    words = ("/bin/sh", "-c", _BURSTS, "chaos", str(times), str(pid), f"{seconds:.3f}", f"{GO_SECONDS:.3f}")
    subprocess.run(words, stdin=subprocess.DEVNULL, start_new_session=True, check=True)


def flip_bit(path: Path, random: Random) -> str:
    """Flip one bit of a file; returns a description of it."""
    place, bit = random.randrange(path.stat().st_size), random.randrange(8)
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ (1 << bit)]))
    return f"bit {bit} of byte {place}"


def newest_checkpoint(folder: Path) -> list[Path]:
    """Returns the files of the newest complete checkpoint in this folder; empty if there is none."""
    steps = {
        int(number): path for path in folder.glob("step-*") if (number := path.name.removeprefix("step-")).isdecimal()
    }
    return _files(steps[max(steps)].rglob("*")) if steps else []


def log_blocks(store: Path) -> list[Path]:
    """Returns the message files of nats-server."""
    return _files(store.rglob("*.blk"))


def _files(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if path.is_file() and path.stat().st_size > 0)


def server_pid(folder: Path) -> int:
    """Returns the process id of the nats-server with files in this folder; 0 if none runs.

    It writes a file named after its process id; its command line is checked too, since process ids are reused.
    """
    files = sorted(folder.glob("nats-server_*.ports"), key=lambda path: path.stat().st_mtime, reverse=True)
    pids = [int(number) for path in files if (number := path.stem.removeprefix("nats-server_")).isdecimal()]
    return next((pid for pid in pids if str(folder) in _command(pid)), 0)


def _command(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(psutil.Process(pid).cmdline())
    return ""


def end_everything(server: int, other_pids: Sequence[int], damage: tuple[Path, Random] | None = None) -> None:
    """Kill the server, then damage a file of its store, kill all others and finally this process.

    Does not yield to the event loop, so that nothing is restarted in between.
    """
    if server:
        kill(server)
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
    if damage is not None:
        flip_bit(*damage)
    for pid in other_pids:
        kill(pid)
    kill(os.getpid())
