"""The protocol of sandbox services: places where commands of an agent's tools run, on this machine or elsewhere.

A service is a class without arguments, or with keyword arguments of its own, whose methods are those of
`SandboxService`. `podman_service.PodmanService` and `ssh_service.SshService` are two; a hosted one is another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec

from areal_actors.core.errors import RecipeError
from areal_actors.core.loading import load_named

LONGEST_OUTPUT = 64 * 1024
RUNTIMES = ("podman", "docker")
SSH = "ssh:"
HOST = re.compile(r"ssh:[\w.][\w.@:\-\[\]]*")
"""Never an option of ssh."""
THIS_MACHINE = "areal_actors.containers.podman_service:PodmanService"
OTHER_HOST = "areal_actors.containers.ssh_service:SshService"


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a command in a sandbox."""

    status: int
    """Exit status, -9 if it was killed after its time."""
    output: str
    """Its standard output and standard error; the middle is left out beyond `longest` bytes."""
    timed_out: bool = False


class SandboxLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of all processes of a sandbox together."""

    memory_mb: int = 2048
    """Memory without swap, in MiB."""
    cpus: float = 1.0
    """CPU cores; 0 sets no limit."""
    max_processes: int = 256
    """Processes and threads."""
    network: str = "none"
    """`none`, or `bridge` for the internet."""
    user: str = ""
    """User in the sandbox; empty for the image's."""


@runtime_checkable
class SandboxService(Protocol):
    """Creates sandboxes from images, runs commands in them, and removes them.

    A service that cannot keep a limit refuses it with SetupError. What a process that was killed has left is removed by
    the service itself: at the next `create`, or after a time without use.
    """

    async def create(self, image: str, limits: SandboxLimits) -> str:
        """Returns the name of a new sandbox whose commands start in the empty folder `/workspace`.

        Args:
            image: name of an image that the service has, best by digest.
            limits: of its processes.

        Raises:
            SetupError: the service, the image or one of the limits is not there.
            SandboxError: no sandbox can be started.
        """
        ...

    async def execute(
        self, sandbox: str, words: Sequence[str], *, stdin: bytes = b"", seconds: float = 60.0, longest: int = 65536
    ) -> CommandResult:
        """Runs a program with arguments; after `seconds`, or if the call is cancelled, everything in it is killed.

        Raises:
            SandboxError: the sandbox has ended.
        """
        ...

    async def put_file(self, sandbox: str, path: str, content: bytes) -> None:
        """Writes a file, folders included; raises SandboxError if it cannot be written."""
        ...

    async def get_file(self, sandbox: str, path: str) -> bytes:
        """Returns the content of a file; raises SandboxError if it cannot be read."""
        ...

    async def remove(self, sandbox: str) -> None:
        """Kills and removes a sandbox, which may be gone already."""
        ...


def is_host(name: str) -> bool:
    """Returns True for `ssh:HOST`."""
    return name.startswith(SSH)


def load_service(name: str, root: Path | None = None, **options: Any) -> SandboxService:
    """Returns the service that a recipe or an agent names as `podman`, `docker`, `ssh:HOST`, or by its class.

    A class is named as `module:Class` or `path.py:Class`, relative to `root`.

    Raises:
        RecipeError: there is no such class, it does not take these options, or it lacks a method.
    """
    is_class = re.search("[.:]", name) and not is_host(name)
    if not is_class and name not in RUNTIMES and not HOST.fullmatch(name):
        raise RecipeError(
            f"sandbox service `{name}`: write `podman`, `docker`, `ssh:HOST`, or a class, `path.py:Class`"
        )
    if name in RUNTIMES:
        return load_service(THIS_MACHINE, None, **{"runtime": name, **options})
    if is_host(name):
        return load_service(OTHER_HOST, None, host=name.removeprefix(SSH), **options)
    kind = load_named(name, root or Path())
    if not callable(kind):
        raise RecipeError(f"sandbox service `{name}`: found {type(kind).__name__}; name a class")
    try:
        service = kind(**options)
    except TypeError as error:
        raise RecipeError(f"sandbox service `{name}`: {error}") from error
    if not isinstance(service, SandboxService):
        members = ("create", "execute", "put_file", "get_file", "remove")
        missing = [member for member in members if not hasattr(service, member)]
        raise RecipeError(f"sandbox service `{name}` has no {', '.join(missing)}; see docs/containers.md")
    return service
