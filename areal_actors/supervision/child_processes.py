"""Starts the processes of a run: forked from a warm parent where several have the same modules and environment.

Elsewhere, and where the operating system lacks what it needs, each is started by itself, as a new interpreter. Either
way it is a child of this process, reads the bus address from a pipe that only this process holds, and writes to its
own file.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from areal_actors.core.module_command import module_command
from areal_actors.processes.fork_server import FORK_SERVER, READY, REQUEST_BYTES, SPARE, ForkReply, ForkRequest

PROGRAM = "areal_actors.processes.fork_server"
TENSORS = "areal_actors.processes.tensor_process"
END_SECONDS = 2.0
"""Time for a fork server to end once its connection is closed."""
UNKNOWN_STATUS = 255
"""Exit status of a process that something else has waited for, as in `asyncio`."""
PR_SET_CHILD_SUBREAPER = 36

logger = structlog.get_logger(__name__)


class ChildProcess(Protocol):
    """A child process, as of `asyncio.subprocess`."""

    @property
    def pid(self) -> int:
        """Its id."""
        ...

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        ...

    async def wait(self) -> int:
        """Wait for its end; returns the exit status."""
        ...

    def send_signal(self, signal: int) -> None:
        """Send a signal.

        Raises:
            ProcessLookupError: it has ended.
        """
        ...


class ProcessStart(msgspec.Struct, frozen=True):
    """Program and environment of a process."""

    module: str
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]

    @property
    def parent(self) -> tuple[object, ...]:
        """Processes with the same one can be forked from the same parent."""
        return self.module, self.environment


class ForkedProcess:
    """A process that a fork server has forked, and this one has adopted."""

    def __init__(self, pid: int, stdin: int) -> None:
        """Take over a child.

        Raises:
            ChildProcessError: it was not adopted.
        """
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        self.pid, self.returncode = pid, None
        self._stdin, self._ended = stdin, os.pidfd_open(pid)
        self._waiting: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self._ended, self._reap)

    pid: int
    returncode: int | None

    def _reap(self) -> None:
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:  # other code of this process has waited for all children
            pid, status = self.pid, UNKNOWN_STATUS << 8
        if not pid:
            return
        self.returncode = os.waitstatus_to_exitcode(status)
        asyncio.get_running_loop().remove_reader(self._ended)
        os.close(self._ended)
        os.close(self._stdin)
        if not self._waiting.done():
            self._waiting.set_result(self.returncode)

    async def wait(self) -> int:
        """Wait for its end; returns the exit status."""
        return await asyncio.shield(self._waiting)

    def send_signal(self, signal: int) -> None:
        """Send a signal.

        Raises:
            ProcessLookupError: it has ended.
        """
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, signal)


class ForkFailed(Exception):
    """A fork server has ended or does not answer."""


class ForkServer:
    """A warm parent of processes."""

    def __init__(self, start: ProcessStart, folder: Path, output: Path, seconds: float) -> None:
        self._start, self._folder, self._output, self._seconds = start, folder, output, seconds
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._connection: socket.socket | None = None
        self.forked = 0
        """Number of processes that it has forked."""

    async def fork(self, start: ProcessStart, stdin: int, output: int) -> int:
        """Returns the id of a new process, which is a child of this one.

        Raises:
            ForkFailed: this server is of no more use.
            OSError: descriptors or processes are wanting.
        """
        async with self._turn:
            if self._process is None:
                await self._open()
            if self._connection is None:
                raise ForkFailed("its connection is closed")
            connection, self._connection = self._connection, None
            try:
                reply = await self._request(connection, ForkRequest(arguments=list(start.arguments)), stdin, output)
            except BaseException:  # a later reply would be taken for that to another request
                connection.close()
                raise
            self._connection = connection
            if reply.error:
                raise OSError(reply.error, os.strerror(reply.error))
            self.forked += 1
            return reply.pid

    async def _request(self, connection: socket.socket, request: ForkRequest, stdin: int, output: int) -> ForkReply:
        with adopting():
            try:
                socket.send_fds(connection, [msgspec.msgpack.encode(request)], [stdin, output])
            except OSError as error:
                raise ForkFailed(str(error)) from error
            return msgspec.msgpack.decode(await self._receive(connection), type=ForkReply)

    async def _open(self) -> None:
        connection, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.setblocking(False)
        self._connection = connection
        with other, self._output.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *module_command(PROGRAM, self._start.module, str(self._folder), SPARE, FORK_SERVER),
                stdin=other.fileno(),
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=dict(self._start.environment),
            )
        if (first := await self._receive(connection)) != READY:
            raise ForkFailed(repr(first))

    async def _receive(self, connection: socket.socket) -> bytes:
        try:
            async with asyncio.timeout(self._seconds):
                body = await asyncio.get_running_loop().sock_recv(connection, REQUEST_BYTES)
        except OSError as error:  # a timeout, too
            raise ForkFailed(str(error) or f"no answer within {self._seconds:g} s") from error
        if not body:
            raise ForkFailed("it has ended")
        return body

    async def close(self) -> None:
        """End the server; what it has forked goes on."""
        if self._connection is not None:
            self._connection.close()
        if (process := self._process) is None:
            return
        try:
            await asyncio.wait_for(process.wait(), END_SECONDS)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            await process.wait()


class ProcessStarter:
    """Starts processes, and keeps the parents of those that are forked."""

    def __init__(self, folder: Path, seconds: float, *, cuda: bool) -> None:
        self._folder, self._seconds = folder, seconds
        self._cuda = cuda
        """True on a machine with CUDA devices, whose driver does not survive a fork; torch may have loaded it."""
        self._like: Counter[tuple[object, ...]] = Counter()
        self._servers: dict[tuple[object, ...], ForkServer] = {}

    def expect(self, start: ProcessStart) -> None:
        """Count a process that will be started; a parent is made for two or more of a kind."""
        self._like[start.parent] += 1

    async def start(self, start: ProcessStart, output: Path, first_line: bytes) -> ChildProcess:
        """Start a process; `first_line` is what it reads from its standard input.

        Raises:
            OSError: it cannot be started.
        """
        while self._is_forked(start):
            server = self._servers.get(start.parent)
            if server is None:
                server = self._servers[start.parent] = ForkServer(start, self._folder, output, self._seconds)
            try:
                return await self._fork(server, start, output, first_line)
            except (ForkFailed, ChildProcessError) as error:
                logger.warning("a process could not be forked", arguments=start.arguments, reason=str(error))
                if self._servers.get(start.parent) is server:
                    del self._servers[start.parent]
                    if not server.forked:  # the next one would fail, too
                        del self._like[start.parent]
                await server.close()
        return await _execute(start, output, first_line)

    def _is_forked(self, start: ProcessStart) -> bool:
        has_devices = self._cuda and start.module == TENSORS
        return self._like[start.parent] > 1 and not has_devices and can_adopt()

    async def _fork(self, server: ForkServer, start: ProcessStart, output: Path, first_line: bytes) -> ChildProcess:
        reading, writing = os.pipe()
        try:
            with output.open("ab") as file:
                pid = await server.fork(start, reading, file.fileno())
            process = ForkedProcess(pid, writing)
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        os.write(writing, first_line)
        return process

    async def close(self) -> None:
        """End all parents."""
        servers = list(self._servers.values())
        self._servers.clear()
        await asyncio.gather(*(server.close() for server in servers))


async def _execute(start: ProcessStart, output: Path, first_line: bytes) -> ChildProcess:
    """Start a process as a new interpreter."""
    with output.open("ab") as file:
        process = await asyncio.create_subprocess_exec(
            *module_command(start.module, *start.arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env=dict(start.environment),
        )
    assert process.stdin is not None
    process.stdin.write(first_line)
    return process


ADOPTING = [0]
"""Number of forks in progress."""


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Be the parent of what descendants leave behind, for the moment of a fork: at other times init is."""
    ADOPTING[0] += 1
    _set_subreaper(on=True)
    try:
        yield
    finally:
        ADOPTING[0] -= 1
        if not ADOPTING[0]:
            _set_subreaper(on=False)


@cache
def can_adopt() -> bool:
    """Returns True where a process can adopt its descendants and wait for a child by a descriptor."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
        _set_subreaper(on=False)
    except OSError:
        return False
    return True


def _set_subreaper(*, on: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def environment_of(*parts: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Returns the environment of a process as a value that can be compared."""
    return tuple(sorted({name: value for part in parts for name, value in part.items()}.items()))
