r"""Runs an untrusted Python program in its own process, with limits on time, memory, files, processes and network.

    ran = run_program("print(int(input()) * 2)", stdin="21", limits=Limits())
    ran.output == b"42\n"

`guest.py` lists the restrictions. They stop accidents and reward hacking; against attackers run the processes that use
the sandbox in a container or a virtual machine. The full set exists only on Linux; elsewhere time, memory, output, disk
and the number of processes are limited, and network and files are open.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

import msgspec

from areal_actors.core.config import Config, PositiveFloat, PositiveInt
from areal_actors.core.errors import SandboxError
from areal_actors.sandbox import guest

GUEST = Path(__file__).with_name("guest.py")
START_SECONDS = 20.0
"""Start timeout of the interpreter on a busy machine; the program's own time limit begins after it."""
POLL_SECONDS = 0.05
FOLDERS = "areal-answer-"
LEFT_SECONDS = 60.0
"""Age from which a folder that no process holds was left by one that was killed."""
KILOBYTE, MEGABYTE, BLOCK = 1 << 10, 1 << 20, 512


class Limits(Config):
    """Resource limits of one program."""

    seconds: PositiveFloat = 2.0
    """Wall time; CPU time is limited to the next whole second."""
    memory_mb: PositiveInt = 512
    """Size of the address space."""
    output_kb: PositiveInt = 1024
    """Largest file that it may write, including its output."""
    disk_mb: PositiveInt = 16
    """Total size of its files; checked every 50 ms."""
    files: PositiveInt = 256
    """Number of files and folders that it may create."""


class ProgramResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a program."""

    timed_out: bool
    status: int
    """Exit status, or minus the signal that killed it; SIGKILL after a timeout."""
    output: bytes
    """Its standard output, and its standard error if requested."""
    over_quota: bool = False
    """True if it exceeded a disk limit and was killed."""
    proved: bool
    """True if every check passed; False if there were none."""


def run_program(
    program: str,
    *,
    stdin: str = "",
    checks: Sequence[str] | None = None,
    limits: Limits,
    errors: bool = False,
    cancel_fd: int | None = None,
) -> ProgramResult:
    """Run a program as `__main__`; or with `checks`, as a module in which these statements are then executed.

    With `errors` the output includes standard error, which is dropped otherwise. `cancel_fd` is a descriptor that
    becomes readable when the caller no longer waits for the program, which is then killed.

    Checks run in another process than the program, and have its functions and objects by stand-ins
    (`remote_objects.py`): what the program returns is data, compared there. The proof that the last check was passed is
    never in the program's process.

    Raises:
        SandboxError: the sandbox cannot be created; not the program's fault.
    """
    proof = secrets.token_hex(16)
    with ExitStack() as held:
        try:
            _remove_left_folders_once()
            folder = held.enter_context(tempfile.TemporaryDirectory(prefix=FOLDERS, ignore_cleanup_errors=True))
            held.callback(os.close, _lock(folder))
            status, status_end = os.pipe()
            held.callback(os.close, status)
            with os.fdopen(status_end, "wb") as child_end:
                given, printed = _file(held, stdin.encode(errors="replace")), _file(held, b"")
                job = _file(held, marshal.dumps(_job(program, checks, limits, folder)))
                tests = _file(held, marshal.dumps({"checks": list(checks or ()), "proof": proof}))
                descriptors = job.fileno(), tests.fileno(), child_end.fileno()
                child = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-B", str(GUEST), *map(str, descriptors)],
                    stdin=given,
                    stdout=printed,
                    stderr=printed if errors else subprocess.DEVNULL,
                    cwd=folder,
                    env={},
                    pass_fds=descriptors,
                    start_new_session=True,
                )
        except OSError as error:
            raise SandboxError(f"the sandbox for the program cannot be created: {error}") from error
        held.callback(_end, child)
        watch = _Watch(status, cancel_fd, folder, limits)
        status_bytes = watch.read(b"", time.monotonic() + START_SECONDS, 1)
        if status_bytes != guest.READY:
            reason = watch.read(status_bytes, time.monotonic() + 1.0, KILOBYTE)[1:].decode(errors="replace")
            raise SandboxError(
                "the sandbox for the program did not start:"
                f" {reason or 'its process ended or hung before it was ready'}"
            )
        deadline = time.monotonic() + limits.seconds
        status_bytes = watch.read(status_bytes, deadline, KILOBYTE)
        while not watch.should_stop and child.poll() is None and time.monotonic() < deadline:
            watch.poll(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))
        with suppress(subprocess.TimeoutExpired):
            child.wait(0.001)
        timed_out = child.returncode is None and not watch.over_quota
        _end(child)
        printed.seek(0)
        output = printed.read(limits.output_kb * KILOBYTE)
        proved = not timed_out and status_bytes == guest.READY + proof.encode()
        return ProgramResult(
            timed_out=timed_out, status=child.returncode, output=output, over_quota=watch.over_quota, proved=proved
        )


@cache
def _remove_left_folders_once() -> None:
    remove_left_folders()


def remove_left_folders() -> None:
    """Remove folders of programs whose worker was killed: old ones that no process has locked."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDERS}*"):
        with suppress(OSError):
            if time.time() - folder.lstat().st_mtime > LEFT_SECONDS and not folder.is_symlink():
                held = _lock(str(folder))
                try:
                    shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(held)


def _lock(folder: str) -> int:
    """Hold a folder until the descriptor is closed, or the process ends.

    Raises:
        OSError: another process holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _job(program: str, checks: Sequence[str] | None, limits: Limits, folder: str) -> dict[str, Any]:
    return {
        "program": program,
        "has_tests": checks is not None,
        "folder": folder,
        "parent": os.getpid(),
        "seconds": limits.seconds,
        "memory_bytes": limits.memory_mb * MEGABYTE,
        "file_bytes": limits.output_kb * KILOBYTE,
    }


def _file(held: ExitStack, content: bytes) -> IO[bytes]:
    """An anonymous file at position 0: unlike a pipe it never fills up, and the program cannot find it."""
    file = held.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - closed by the stack
    file.write(content)
    file.seek(0)
    return file


class _Watch:
    """Watches the guest's status pipe, its disk usage, and the caller's cancellation."""

    def __init__(self, status: int, cancel_fd: int | None, folder: str, limits: Limits) -> None:
        self.status, self.folder, self.limits = status, folder, limits
        self.over_quota = False
        self.cancel_fd = cancel_fd
        self.cancelled = False
        self._measured = time.monotonic()

    @property
    def should_stop(self) -> bool:
        """True if the program must be killed before its timeout."""
        return self.over_quota or self.cancelled

    def read(self, received: bytes, deadline: float, most: int) -> bytes:
        """Read the status pipe until it has `most` bytes or closes, the program must stop, or the deadline passes."""
        while len(received) < most and not self.should_stop and (rest := deadline - time.monotonic()) > 0:
            if self.poll(min(rest, POLL_SECONDS), self.status):
                if not (more := os.read(self.status, most - len(received))):
                    break
                received += more
        return received

    def poll(self, seconds: float, status: int | None = None) -> bool:
        """Wait at most `seconds`; returns True if `status` is readable."""
        waiting = select.poll()  # select() itself cannot watch descriptors from 1024 on
        for descriptor in (status, self.cancel_fd):
            if descriptor is not None:
                waiting.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in waiting.poll(seconds * 1000)}
        self.cancelled = self.cancelled or self.cancel_fd in ready
        if time.monotonic() - self._measured >= POLL_SECONDS:
            self._measured = time.monotonic()
            self.over_quota = _is_over_quota(self.folder, self.limits)
        return status in ready


def _is_over_quota(folder: str, limits: Limits) -> bool:
    """True if the number or total size of files exceeds its limit."""
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
    """Kill the process group, and reap the process."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
