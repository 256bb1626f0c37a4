"""An agent's process in a container of its own.

It reaches the gateway of its episode and, by default, nothing else.
"""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import structlog

from areal_actors.containers.gateway_relay import RELAY_PORT, GatewayRelay
from areal_actors.containers.runtime import ContainerImage, ContainerRuntime, Mount, container_name, find_runtime
from areal_actors.core.agent_host.faults import describe_exit
from areal_actors.core.container_settings import ContainerSettings
from areal_actors.core.errors import SetupError
from areal_actors.core.task_settings import TaskSettings
from areal_actors.rollout.agent_process import (
    BOOT,
    END_SECONDS,
    HOST,
    START_SECONDS,
    AgentProcess,
    AgentProgram,
    close_writer,
)

logger = structlog.get_logger(__name__)

WORKSPACE, HOST_INSIDE, SOCKETS_INSIDE = "/workspace", "/areal/agent_host", "/areal/sockets"
PYTHON = "python3"


class ContainerProgram(AgentProgram):
    """Program of an agent's containers; `root` and `python` are the container's."""

    container: ContainerSettings
    folder: str
    """Folder on this machine to which the agent's file and the mounts are relative."""


def container_program(task: TaskSettings, root: Path) -> ContainerProgram:
    """Returns the program of a recipe's containers: the agent by its name, a script, or a command of the image."""
    python = task.python or PYTHON
    script = (python, task.agent) if task.is_script() else ()
    return ContainerProgram(
        agent="" if script else task.agent,
        command=task.command or script,
        title=task.agent,
        root=WORKSPACE,
        python=python,
        options=task.agent_options,
        memory_mb=task.memory_mb,
        model_errors=task.model_errors,
        container=task.container,
        folder=str(root),
    )


class _ControlSocket(AbstractContextManager["_ControlSocket"]):
    """A Unix socket that accepts one connection, the container's; the agent, which may look for it, is refused.

    A connection is accepted within one turn of the event loop, so that a cancelled start leaves no open socket.
    """

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self.connected: asyncio.Future[socket.socket] = self._loop.create_future()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        path.chmod(0o666)  # any user of the container may open it
        self._listener.setblocking(False)
        self._listener.listen(1)
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            connection, _ = self._listener.accept()
            self._stop_listening()
            self.connected.set_result(connection)

    def _stop_listening(self) -> None:
        if self._listener.fileno() != -1:
            self._loop.remove_reader(self._listener)
            self._listener.close()

    def close(self) -> None:
        """Accept no connection any more, and close the one that was accepted."""
        self._stop_listening()
        if self.connected.done():
            self.connected.result().close()

    def __exit__(self, *_: object) -> None:
        self.close()


class ContainerProcess(AgentProcess):
    """One container with the agent loaded, with the interface of an agent's process."""

    program: ContainerProgram

    def __init__(self, program: ContainerProgram) -> None:
        super().__init__(program)
        self._relay = GatewayRelay()

    async def _spawn(self) -> None:
        settings = self.program.container
        runtime, image = await asyncio.to_thread(_prepare, settings.runtime, settings.image)
        private = Path(self._resources.enter_context(tempfile.TemporaryDirectory(prefix="areal-container-")))
        sockets = private / "sockets"
        sockets.mkdir(mode=0o755)
        self._resources.push_async_callback(self._relay.close)
        await self._relay.start(sockets / "gateway")
        control = self._resources.enter_context(_ControlSocket(sockets / "control"))
        name = container_name()
        words = runtime.run_words(
            settings,
            name=name,
            image=image.id,
            command=(
                *(self.program.python, "-c", BOOT),
                *(HOST_INSIDE, "container_entry", SOCKETS_INSIDE, WORKSPACE, str(RELAY_PORT)),
            ),
            mounts=(Mount(HOST, HOST_INSIDE), Mount(sockets, SOCKETS_INSIDE), *_mounts(self.program)),
            scratch=WORKSPACE,
            memory_mb=self.program.memory_mb,
        )
        await self._start_child(words, "task.container.runtime: name a container runtime", cwd=private)
        self._resources.push_async_callback(self._end_container, runtime, name)
        self._resources.callback(control.close)
        self._reader, self._writer = await self._connection(control)
        self._resources.push_async_callback(close_writer, self._writer)

    async def _connection(self, control: _ControlSocket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The container's connection.

        Raises:
            SetupError: it has not connected in time, or has ended.
        """
        ended = asyncio.create_task(self._child.wait())
        waits: set[asyncio.Future[Any]] = {ended, control.connected}
        await asyncio.wait(waits, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if control.connected.done():
            return await asyncio.open_unix_connection(sock=control.connected.result())
        image = f"task.container: no agent process started in a container of {self.program.container.image}"
        if not ended.done():
            raise SetupError(f"{image} within {START_SECONDS:g} s{self.output_tail()}")
        raise SetupError(
            f"{image}; the image needs a Python interpreter, `task.python`, and the limits must suit this machine:"
            f" the container {_describe_status(self._child.returncode)}{self.output_tail()}"
        )

    async def _end_container(self, runtime: ContainerRuntime, name: str) -> None:
        """Remove a container that does not end by itself once its connection is closed, or whose client was killed."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._child.wait(), END_SECONDS)
        if self._child.returncode is None or self._child.returncode < 0:
            await asyncio.shield(runtime.remove(name))

    def data_limit_mb(self) -> int:
        """Returns 0: the runtime limits the memory of all processes of the container."""
        return 0

    def reach_gateway(self, base_url: str) -> str:
        """Lead the container's connections to this address; returns the address inside."""
        return self._relay.reach(base_url)

    async def _end(self) -> str:
        try:
            return _describe_status(await asyncio.wait_for(self._child.wait(), END_SECONDS))
        except TimeoutError:
            end = await super()._end()
            return end if self._child.returncode is None else _describe_status(self._child.returncode)


def _describe_status(status: int | None) -> str:
    """Describe the exit of a container, whose status above 128 is that of a signal."""
    return describe_exit(128 - status if status is not None and status > 128 else status or 0)


@cache
def _prepare(runtime_name: str, image_name: str) -> tuple[ContainerRuntime, ContainerImage]:
    """Find runtime and image, once: all containers of this process have one image, wherever its name leads later."""
    runtime = find_runtime(runtime_name)
    image = runtime.find_image(image_name)
    left = runtime.remove_left()
    logger.info("container image", image=image_name, id=image.id, digest=image.digest, removed_containers=left)
    return runtime, image


def _mounts(program: ContainerProgram) -> Iterator[Mount]:
    """Yields the folder of the agent's file, the file alone beside the runs, and what the recipe names."""
    root = Path(program.folder)
    agent = program.agent.partition(":")[0] or next((word for word in program.command if word.endswith(".py")), "")
    if agent.endswith(".py") and (root / agent).is_file():
        file = (root / agent).absolute()
        inside = Path(os.path.normpath(Path(WORKSPACE) / agent))
        is_beside_runs = file.resolve().parent == root.resolve()
        yield Mount(file, str(inside)) if is_beside_runs else Mount(file.parent, str(inside.parent))
    for words in program.container.mounts:
        source, _, rest = words.partition(":")
        target, _, mode = rest.partition(":")
        place = target or (source if source.startswith("/") else f"{WORKSPACE}/{source}")
        yield Mount((root / Path(source).expanduser()).resolve(), place, is_writable=mode == "rw")
