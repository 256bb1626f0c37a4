r"""A Python program that nobody trusts, in a process of its own with bounds on time, memory, files, processes and network.

    ran = run_program("print(int(input()) * 2)", stdin="21", limits=Limits())
    ran.output == b"42\n"

`guest.py` says what shuts the process in. It holds off accidents, and a model that is looking for a shorter way to its reward;
against attackers put the processes that use it into a container or a virtual machine. Linux is where it is tight; elsewhere time,
memory, output, disk and the number of processes are bounded, and network and files are open.
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
from areal_actors.errors import SandboxError
from areal_actors.sandbox import guest

GUEST = Path(__file__).with_name("guest.py")
START_SECONDS = 20.0
"""For an interpreter to start on a machine that has much else to do; its program's own time counts from then on."""
POLL_SECONDS = 0.05
KILOBYTE, MEGABYTE, BLOCK = 1 << 10, 1 << 20, 512


class Limits(Config):
    """What one program may use."""

    seconds: PositiveFloat = 2.0
    """Of the clock; CPU time is bounded by the next whole second."""
    memory_mb: PositiveInt = 512
    """Address space."""
    output_kb: PositiveInt = 1024
    """Largest file that it writes, its output included."""
    disk_mb: PositiveInt = 16
    """All its files together; looked at every twentieth of a second."""
    files: PositiveInt = 256
    """Files and folders that it makes."""


class ProgramResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended."""

    timed_out: bool
    status: int
    """Exit status, or minus the signal that ended it; that of the kill when its time was up."""
    output: bytes
    """Its standard output, with its standard error where that was asked for."""
    over_quota: bool = False
    """It wrote more files than it may, and was killed."""
    proved: bool
    """Whether every check passed; False where there were none."""


def run_program(
    program: str,
    *,
    stdin: str = "",
    checks: Sequence[str] | None = None,
    limits: Limits,
    errors: bool = False,
    cancel_fd: int | None = None,
) -> ProgramResult:
    """Run a program as the main one; or with `checks`, as a module in which those statements are then executed.

    With `errors` the output has the standard error, too, else that is dropped. `left` is a descriptor that can be read as soon
    as nobody waits for the program any more: it is then killed.

    Checks share the program's interpreter. That it ends well is not taken for success: only the last check's end proves it.

    Raises:
        SandboxError: the sandbox cannot be made, which is no fault of the program's; the message says why.
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
                    stderr=printed if errors else subprocess.DEVNULL,
                    cwd=folder,
                    env={},
                    pass_fds=(job.fileno(), theirs.fileno()),
                    start_new_session=True,
                )
        except OSError as error:
            raise SandboxError(f"the sandbox for the program cannot be made: {error}") from error
        held.callback(_end, child)
        watch = _Watch(status, cancel_fd, folder, limits)
        told = watch.read(b"", time.monotonic() + START_SECONDS, 1)
        if told != guest.READY:
            reason = watch.read(told, time.monotonic() + 1.0, KILOBYTE)[1:].decode(errors="replace")
            raise SandboxError(f"the sandbox for the program did not start: {reason or 'its process ended or hung before it was ready'}")
        deadline = time.monotonic() + limits.seconds
        told = watch.read(told, deadline, KILOBYTE)
        while not watch.should_stop and child.poll() is None and time.monotonic() < deadline:
            watch.poll(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))
        with suppress(subprocess.TimeoutExpired):
            child.wait(0.001)
        timed_out = child.returncode is None and not watch.over_quota
        _end(child)
        printed.seek(0)
        output = printed.read(limits.output_kb * KILOBYTE)
        proved = not timed_out and told == guest.READY + proof.encode()
        return ProgramResult(timed_out=timed_out, status=child.returncode, output=output, over_quota=watch.over_quota, proved=proved)


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


class _Watch:
    """What the guest writes, how much it keeps on disk, and whether anybody still waits for it."""

    def __init__(self, status: int, cancel_fd: int | None, folder: str, limits: Limits) -> None:
        self.status, self.folder, self.limits = status, folder, limits
        self.over_quota = False
        self.cancel_fd = cancel_fd
        self.abandoned = False
        self._measured = time.monotonic()

    @property
    def should_stop(self) -> bool:
        """Whether there is a reason to end it before its time."""
        return self.over_quota or self.abandoned

    def read(self, told: bytes, deadline: float, most: int) -> bytes:
        """What it has written, until it has written `most`, ends, is to end, or the deadline passes."""
        while len(told) < most and not self.should_stop and (rest := deadline - time.monotonic()) > 0:
            if self.poll(min(rest, POLL_SECONDS), self.status):
                if not (more := os.read(self.status, most - len(told))):
                    break
                told += more
        return told

    def poll(self, seconds: float, status: int | None = None) -> bool:
        """Wait for so long at most; returns whether there is something to read."""
        waiting = select.poll()  # select() itself cannot watch descriptors from 1024 on
        for descriptor in (status, self.cancel_fd):
            if descriptor is not None:
                waiting.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in waiting.poll(seconds * 1000)}
        self.abandoned = self.abandoned or self.cancel_fd in ready
        if time.monotonic() - self._measured >= POLL_SECONDS:
            self._measured = time.monotonic()
            self.over_quota = _is_over_quota(self.folder, self.limits)
        return status in ready


def _is_over_quota(folder: str, limits: Limits) -> bool:
    """Whether there are more files, or more in them, than there may be."""
    files = used = 0
    for place, folders, names in os.walk(folder, onerror=None):
        files += len(folders) + len(names)
        if files > limits.files:
            return True
        for name in names:
            with suppress(OSError):
                used += Path(place, name).lstat().st_blocks * BLOCK
    return used > limits.disk_mb * MEGABYTE


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill it with all that it has started, and bury it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
