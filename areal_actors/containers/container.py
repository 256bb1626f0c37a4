"""A container in which the commands of an agent's tools run, while the agent itself runs outside."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from areal_actors.containers.podman_service import SHELL, PodmanService
from areal_actors.containers.runtime import Mount
from areal_actors.containers.service import (
    LONGEST_OUTPUT,
    RUNTIMES,
    CommandResult,
    SandboxLimits,
    SandboxService,
    is_host,
    load_service,
)
from areal_actors.core.container_settings import ContainerSettings


class Container:
    """A container from an image with `/bin/sh`, as a context: `run` runs one command after the other in it.

    It is removed at the end of the context, or when this process ends, however it ends.
    """

    def __init__(
        self,
        image: str,
        settings: ContainerSettings | Mapping[str, Any] | None = None,
        *,
        memory_mb: int = 2048,
        mounts: Sequence[Mount] = (),
        service: SandboxService | str = "",
    ) -> None:
        """Start nothing yet.

        Args:
            image: name, best by digest; it is on this machine, or at the service.
            settings: network (`none` if there are no settings), processor time, processes, user and runtime; also as a
                mapping.
            memory_mb: memory of all its processes, in MiB.
            mounts: files and folders of this machine, for a container on it.
            service: another sandbox service, or its name, as in `task.container.service`.

        Raises:
            RecipeError: there is no such class.
        """
        if not isinstance(settings, ContainerSettings):
            settings = msgspec.convert(settings or {}, ContainerSettings)
        self.image = image
        if not isinstance(service, str):
            self.service = service
        elif service in ("", *RUNTIMES):
            self.service = PodmanService(service, settings=settings, mounts=mounts)
        elif is_host(service) and settings.runtime:
            self.service = load_service(service, runtime=settings.runtime)
        else:
            self.service = load_service(service)
        self.limits = SandboxLimits(
            memory_mb=memory_mb,
            cpus=settings.cpus,
            max_processes=settings.max_processes,
            network=settings.network,
            user=settings.user,
        )
        self.name = ""
        """Its name at the service, once it has started."""

    async def __aenter__(self) -> Self:
        """Start it.

        Raises:
            SetupError: there is no runtime, or no such image, on this machine.
            SandboxError: the runtime cannot start it.
        """
        self.name = await self.service.create(self.image, self.limits)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill and remove it."""
        await asyncio.shield(self.service.remove(self.name))

    async def run(
        self, command: str | Sequence[str], *, stdin: str = "", seconds: float = 60.0, longest: int = LONGEST_OUTPUT
    ) -> CommandResult:
        """Run a command: a line for the shell, or a program and its arguments.

        After `seconds` everything that runs in the container is killed. A cancelled call does the same.

        Raises:
            SandboxError: the container has ended.
        """
        words = (SHELL, "-c", command) if isinstance(command, str) else tuple(command)
        return await self.service.execute(self.name, words, stdin=stdin.encode(), seconds=seconds, longest=longest)

    async def put_file(self, path: str, content: bytes) -> None:
        """Write a file, folders included; raises SandboxError if it cannot be written."""
        await self.service.put_file(self.name, path, content)

    async def get_file(self, path: str) -> bytes:
        """Returns the content of a file; raises SandboxError if it cannot be read."""
        return await self.service.get_file(self.name, path)
