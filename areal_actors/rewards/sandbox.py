r"""A Python program that nobody trusts, in a process of its own with bounds on time, memory, files, processes and network.

    ran = run_program("print(int(input()) * 2)", stdin="21", limits=Limits())
    ran.output == b"42\n"

`sandbox_guest.py` says what shuts the process in. It holds off accidents, and a model that is looking for a shorter way to
its reward; against attackers put the reward workers into a container or a virtual machine. Linux is where it is tight;
elsewhere time, memory, output and the number of processes are bounded, and network and files are open.
"""

from __future__ import annotations

import marshal
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from areal_actors.config import Config, PositiveFloat, PositiveInt
from areal_actors.errors import RewardError
from areal_actors.rewards import sandbox_guest

GUEST = Path(__file__).with_name("sandbox_guest.py")
START_SECONDS = 20.0
"""For an interpreter to start on a machine that has much else to do; its program's own time counts from then on."""
KILOBYTE, MEGABYTE = 1 << 10, 1 << 20


class Limits(Config):
    """What one program may use."""

    seconds: PositiveFloat = 2.0
    """Of the clock; CPU time is bounded by the next whole second."""
    memory_mb: PositiveInt = 512
    """Address space."""
    output_kb: PositiveInt = 1024
    """Largest file that it writes, its output included."""


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended."""

    timed_out: bool
    status: int
    """Exit status, or minus the signal that ended it; that of the kill when its time was up."""
    output: bytes
    """Its standard output; its standard error is dropped."""
    proved: bool
    """Whether every check passed; False where there were none."""


def run_program(program: str, *, stdin: str = "", checks: Sequence[str] | None = None, limits: Limits) -> Ran:
    """Run a program as the main one; or with `checks`, as a module in which those statements are then executed.

    Checks share the program's interpreter. That it ends well is not taken for success: only the last check's end proves it.

    Raises:
        RewardError: the sandbox cannot be made, which is nobody's answer's fault; the message says why.
    """
    proof = secrets.token_hex(16)
    with ExitStack() as held:
        try:
            folder = held.enter_context(tempfile.TemporaryDirectory(prefix="areal-answer-", ignore_cleanup_errors=True))
            status, status_end = os.pipe()
            held.callback(os.close, status)
            with os.fdopen(status_end, "wb") as theirs:
                given, printed = _file(held, stdin.encode(errors="replace")), _file(held, b"")
                job = _file(held, marshal.dumps(_job(program, checks, limits, folder, proof)))
                child = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-B", str(GUEST), str(job.fileno()), str(theirs.fileno())],
                    stdin=given,
                    stdout=printed,
                    stderr=subprocess.DEVNULL,
                    cwd=folder,
                    env={},
                    pass_fds=(job.fileno(), theirs.fileno()),
                    start_new_session=True,
                )
        except OSError as error:
            raise RewardError(f"the sandbox for the answer's program cannot be made: {error}") from error
        held.callback(_end, child)
        told = _told(status, b"", time.monotonic() + START_SECONDS, 1)
        if told != sandbox_guest.READY:
            reason = _told(status, told, time.monotonic() + 1.0, KILOBYTE)[1:].decode(errors="replace")
            raise RewardError(
                f"the sandbox for the answer's program did not start: {reason or 'its process ended or hung before it was ready'}"
            )
        deadline = time.monotonic() + limits.seconds
        told = _told(status, told, deadline, KILOBYTE)
        timed_out = False
        try:
            child.wait(max(0.0, deadline - time.monotonic()) + 0.001)
        except subprocess.TimeoutExpired:
            timed_out = True
            _end(child)
        printed.seek(0)
        output = printed.read(limits.output_kb * KILOBYTE)
        proved = not timed_out and told == sandbox_guest.READY + proof.encode()
        return Ran(timed_out=timed_out, status=child.returncode, output=output, proved=proved)


def _job(program: str, checks: Sequence[str] | None, limits: Limits, folder: str, proof: str) -> dict[str, Any]:
    return {
        "program": program,
        "checks": None if checks is None else list(checks),
        "proof": proof,
        "folder": folder,
        "parent": os.getpid(),
        "seconds": limits.seconds,
        "memory_bytes": limits.memory_mb * MEGABYTE,
        "file_bytes": limits.output_kb * KILOBYTE,
    }


def _file(held: ExitStack, content: bytes) -> IO[bytes]:
    """A file without a name, at its beginning: no pipe that fills up, and nothing to find for the program."""
    file = held.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - it is held
    file.write(content)
    file.seek(0)
    return file


def _told(status: int, told: bytes, deadline: float, most: int) -> bytes:
    """What the guest has written, until it has written `most`, ends, or the deadline passes."""
    while len(told) < most:
        waiting = select.poll()  # select() itself cannot watch descriptors from 1024 on
        waiting.register(status, select.POLLIN)
        if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
            break
        if not (more := os.read(status, most - len(told))):
            break
        told += more
    return told


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill it with all that it has started, and bury it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
