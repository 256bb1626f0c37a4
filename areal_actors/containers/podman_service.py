"""Sandboxes by the container runtime of this machine, podman or docker."""

from __future__ import annotations

import asyncio
import shlex
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import NamedTuple

from areal_actors.containers.command_output import CommandOutput
from areal_actors.containers.runtime import ContainerRuntime, Mount, container_name, find_runtime
from areal_actors.containers.service import LONGEST_OUTPUT, CommandResult, SandboxLimits, SandboxService
from areal_actors.core.container_settings import ContainerSettings
from areal_actors.core.errors import SandboxError

SHELL = "/bin/sh"
WORKSPACE = "/workspace"
"""Folder of commands, in memory: any user of the container may write to it."""
LARGEST_FILE = 1 << 30
START_SECONDS = 120.0
FILE_SECONDS = 60.0
STARTED = b"started\n"
WAIT = f"echo {STARTED.decode().strip()}; read _"
"""Ends when this process closes the container's standard input, by its death at the latest."""


class _Started(NamedTuple):
    process: asyncio.subprocess.Process
    folder: tempfile.TemporaryDirectory[str]
    image: str


class PodmanService(SandboxService):
    """Containers of this machine, each of which ends with the process that made it."""

    def __init__(
        self, runtime: str = "", *, settings: ContainerSettings | None = None, mounts: Sequence[Mount] = ()
    ) -> None:
        """`runtime` as in `[task.container]`; `settings` and `mounts` are further ones of this machine."""
        settings = settings or ContainerSettings()
        self.settings, self.mounts = settings, tuple(mounts)
        self.find: Callable[[], ContainerRuntime] = lambda: find_runtime(runtime or settings.runtime)
        self._started: dict[str, _Started] = {}

    async def create(self, image: str, limits: SandboxLimits) -> str:
        """Returns the name of a new container; see `SandboxService.create`."""
        runtime = await asyncio.to_thread(self.find)
        found = await asyncio.to_thread(runtime.find_image, image)
        await asyncio.to_thread(runtime.remove_left)
        name = container_name()
        settings = ContainerSettings(
            network=limits.network,
            cpus=limits.cpus,
            max_processes=limits.max_processes,
            user=limits.user,
            options=self.settings.options,
        )
        words = runtime.run_words(
            settings,
            name=name,
            image=found.id,
            command=(SHELL, "-c", WAIT),
            mounts=self.mounts,
            scratch=WORKSPACE,
            memory_mb=limits.memory_mb,
        )
        folder = tempfile.TemporaryDirectory(prefix="areal-container-")  # podman writes a note of an OOM kill there
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=pipe, cwd=folder.name)
        self._started[name] = _Started(process, folder, image)
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async with asyncio.timeout(START_SECONDS):
                if await process.stdout.readline() != STARTED:
                    reason = (await process.stderr.read()).decode(errors="replace").strip()
                    raise SandboxError(f"no container of {image} can be started: {reason}")
        except BaseException as error:
            await self.remove(name)
            if isinstance(error, TimeoutError):
                raise SandboxError(f"no container of {image} was started within {START_SECONDS:g} s") from error
            raise
        return name

    async def execute(
        self,
        sandbox: str,
        words: Sequence[str],
        *,
        stdin: bytes = b"",
        seconds: float = 60.0,
        longest: int = LONGEST_OUTPUT,
    ) -> CommandResult:
        """Runs a command; see `SandboxService.execute`."""
        output = CommandOutput(longest)
        status = await self._run(sandbox, words, stdin, seconds, output)
        if status is None:
            return CommandResult(status=-9, output=output.text(), timed_out=True)
        started = self._started.get(sandbox)
        if started is None or started.process.returncode is not None:
            image = started.image if started else sandbox
            raise SandboxError(f"the container of {image} has ended: {output.text()[-300:]}")
        return CommandResult(status=status, output=output.text())

    async def put_file(self, sandbox: str, path: str, content: bytes) -> None:
        """Writes a file; see `SandboxService.put_file`."""
        target, folder = shlex.quote(path), shlex.quote(str(PurePosixPath(path).parent))
        command = f"mkdir -p -- {folder} && cat > {target}"
        result = await self.execute(sandbox, (SHELL, "-c", command), stdin=content, seconds=FILE_SECONDS)
        if result.status:
            raise SandboxError(f"{path} cannot be written in the sandbox: {result.output.strip()[-300:]}")

    async def get_file(self, sandbox: str, path: str) -> bytes:
        """Returns the content of a file of at most 1 GiB; see `SandboxService.get_file`."""
        output = CommandOutput(2 * LARGEST_FILE)
        words = (SHELL, "-c", f"exec cat -- {shlex.quote(path)}")
        status = await self._run(sandbox, words, b"", FILE_SECONDS, output)
        if status:
            raise SandboxError(f"{path} cannot be read in the sandbox: {output.text().strip()[-300:]}")
        if status is None or output.size > LARGEST_FILE:
            raise SandboxError(f"{path} cannot be read in {FILE_SECONDS:g} s, or is larger than {LARGEST_FILE:,} bytes")
        return bytes(output.first)

    async def remove(self, sandbox: str) -> None:
        """Kills and removes a container; see `SandboxService.remove`."""
        started = self._started.pop(sandbox, None)
        await asyncio.shield(self.find().remove(sandbox))
        if started is not None:
            with suppress(ProcessLookupError):
                started.process.kill()
            await started.process.wait()
            started.folder.cleanup()

    async def _run(
        self, sandbox: str, words: Sequence[str], stdin: bytes, seconds: float, output: CommandOutput
    ) -> int | None:
        """Returns the status of a command; None if it was killed after its time."""
        runtime, pipe = self.find(), asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *runtime.words("exec", "--interactive", "--workdir", WORKSPACE, sandbox, *words),
            stdin=pipe,
            stdout=pipe,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdout is not None
        reading = asyncio.create_task(output.read(process.stdout))
        try:
            async with asyncio.timeout(seconds):
                await _write(process, stdin)
                status = await process.wait()
                await reading
                return status
        except (TimeoutError, asyncio.CancelledError) as error:
            kill_all = runtime.words("exec", sandbox, SHELL, "-c", "kill -9 -1")
            await asyncio.shield(runtime.run_quietly(kill_all))
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            reading.cancel()
            if isinstance(error, asyncio.CancelledError):
                raise
            return None


async def _write(process: asyncio.subprocess.Process, content: bytes) -> None:
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.write(content)
        await process.stdin.drain()
    process.stdin.close()
