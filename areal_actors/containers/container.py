"""A container in which the commands of an agent's tools run, while the agent itself runs outside."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

import msgspec

from areal_actors.containers.runtime import Mount, container_name, find_runtime
from areal_actors.core.container_settings import ContainerSettings
from areal_actors.core.errors import SandboxError

SHELL = "/bin/sh"
WORKSPACE = "/workspace"
"""Folder of commands, in memory: any user of the container may write to it."""
LONGEST_OUTPUT = 64 * 1024
START_SECONDS = 120.0
CHUNK = 1 << 16
STARTED = b"started\n"
WAIT = f"echo {STARTED.decode().strip()}; read _"
"""Ends when this process closes the container's standard input, by its death at the latest."""


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a command in a container."""

    status: int
    """Exit status, -9 if it was killed after its time."""
    output: str
    """Its standard output and standard error; the middle is left out beyond `longest` bytes."""
    timed_out: bool = False


class Container:
    """A container from an image with `/bin/sh`, as a context: `run` runs one command after the other in it.

    It is removed at the end of the context, or when this process ends, however it ends.
    """

    def __init__(
        self,
        image: str,
        settings: ContainerSettings | None = None,
        *,
        memory_mb: int = 2048,
        mounts: Sequence[Mount] = (),
    ) -> None:
        """Start nothing yet.

        Args:
            image: name, best by digest; it is on this machine.
            settings: network (`none` if there are no settings), processor time, processes, user and runtime.
            memory_mb: memory of all its processes, in MiB.
            mounts: files and folders of this machine.
        """
        self.image, self.settings = image, settings or ContainerSettings()
        self.memory_mb, self.mounts = memory_mb, tuple(mounts)
        self.name = container_name()

    async def __aenter__(self) -> Self:
        """Start it.

        Raises:
            SetupError: there is no runtime, or no such image, on this machine.
            SandboxError: the runtime cannot start it.
        """
        self._runtime = find_runtime(self.settings.runtime)
        image = await asyncio.to_thread(self._runtime.find_image, self.image)
        await asyncio.to_thread(self._runtime.remove_left)
        words = self._runtime.run_words(
            self.settings,
            name=self.name,
            image=image.id,
            command=(SHELL, "-c", WAIT),
            mounts=self.mounts,
            scratch=WORKSPACE,
            memory_mb=self.memory_mb,
        )
        self._folder = tempfile.TemporaryDirectory(
            prefix="areal-container-"
        )  # podman writes a note of an OOM kill there
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *words, stdin=pipe, stdout=pipe, stderr=pipe, cwd=self._folder.name
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        try:
            async with asyncio.timeout(START_SECONDS):
                if await self._process.stdout.readline() != STARTED:
                    reason = (await self._process.stderr.read()).decode(errors="replace").strip()
                    raise SandboxError(f"no container of {self.image} can be started: {reason}")
        except BaseException as error:
            await self.__aexit__(None, None, None)
            if isinstance(error, TimeoutError):
                raise SandboxError(f"no container of {self.image} was started within {START_SECONDS:g} s") from error
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill and remove it."""
        await asyncio.shield(self._runtime.remove(self.name))
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._folder.cleanup()

    async def run(
        self, command: str | Sequence[str], *, stdin: str = "", seconds: float = 60.0, longest: int = LONGEST_OUTPUT
    ) -> CommandResult:
        """Run a command: a line for the shell, or a program and its arguments.

        After `seconds` everything that runs in the container is killed. A cancelled call does the same.

        Raises:
            SandboxError: the container has ended.
        """
        words = (SHELL, "-c", command) if isinstance(command, str) else tuple(command)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *(self._runtime.program, "exec", "--interactive", "--workdir", WORKSPACE, self.name, *words),
            stdin=pipe,
            stdout=pipe,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdout is not None
        output = _Output(longest)
        reading = asyncio.create_task(output.read(process.stdout))
        try:
            async with asyncio.timeout(seconds):
                await _write(process, stdin)
                status = await process.wait()
                await reading
        except (TimeoutError, asyncio.CancelledError) as error:
            await asyncio.shield(self._kill_all())
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            reading.cancel()
            if isinstance(error, asyncio.CancelledError):
                raise
            return CommandResult(status=-9, output=output.text(), timed_out=True)
        if self._process.returncode is not None:
            raise SandboxError(f"the container of {self.image} has ended: {output.text()[-300:]}")
        return CommandResult(status=status, output=output.text())

    async def _kill_all(self) -> None:
        """Kill every process but the first."""
        await self._runtime.run_quietly((self._runtime.program, "exec", self.name, SHELL, "-c", "kill -9 -1"))


class _Output:
    """The beginning and the end of a stream."""

    def __init__(self, longest: int) -> None:
        self.half = max(longest // 2, 1)
        self.first, self.last, self.size = bytearray(), bytearray(), 0

    async def read(self, stream: asyncio.StreamReader) -> None:
        while chunk := await stream.read(CHUNK):
            self.size += len(chunk)
            room = self.half - len(self.first)
            self.first += chunk[:room]
            self.last += chunk[max(room, 0) :]
            del self.last[: -self.half]

    def text(self) -> str:
        left_out = self.size - len(self.first) - len(self.last)
        middle = f"\n… {left_out} bytes left out …\n".encode() if left_out else b""
        return (bytes(self.first) + middle + bytes(self.last)).decode(errors="replace")


async def _write(process: asyncio.subprocess.Process, text: str) -> None:
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.write(text.encode())
        await process.stdin.drain()
    process.stdin.close()
