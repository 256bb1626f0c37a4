"""The table `[task.container]`: the container of an agent's processes, or those of the commands of its tools."""

from __future__ import annotations

from typing import Any

from areal_actors.core.config import Config, NonNegativeFloat, PositiveInt


class ContainerSettings(Config):
    """`[task.container]`: containers with the runner `container`, each of one agent process, or of an agent's tools."""

    image: str = ""
    """Image that is on this machine, or at the service, best by digest, as in `docker.io/library/python@sha256:…`; for
    an agent's processes it has a Python interpreter, `task.python`. Nothing is pulled."""
    service: str = ""
    """Sandbox service of the commands of an agent's tools, while the agent itself runs outside: `podman` or `docker` of
    this machine, `ssh:HOST` for the runtime of another host, or `path.py:Class` or `package.module:Class` of your own.
    The agent's class gets image, service and limits in its argument `container`, for `Container(**container)`."""
    memory_mb: PositiveInt = 2048
    """Memory of a container of tools, in MiB; agents in containers have `task.memory_mb`."""
    runtime: str = ""
    """Container runtime: `podman`, `docker`, or the path of a program that takes their arguments; empty for the first
    that is installed, and for `podman` on the host of a service `ssh:HOST`."""
    network: str = "none"
    """Network of the containers, as the runtime names it: `none` reaches the gateway and nothing else, `bridge` the
    internet too."""
    cpus: NonNegativeFloat = 1.0
    """CPU cores of one container; 0 sets no limit."""
    max_processes: PositiveInt = 256
    """Maximum number of processes and threads in one container."""
    mounts: tuple[str, ...] = ()
    """Files and folders beside the agent's own that a container gets, as `data`, `data:/data`, or `out:/out:rw`: read
    only unless `rw` is written; a path without a second one is found at the same place below `/workspace`."""
    user: str = ""
    """User in the container, as in `1000:1000`; empty for the image's."""
    options: tuple[str, ...] = ()
    """Further arguments of the runtime's `run`, as in `["--gpus", "all"]`."""

    def tool_arguments(self) -> dict[str, Any]:
        """Returns the arguments of `areal_actors.containers.Container` for an agent's tools, as plain values."""
        names = ("network", "cpus", "max_processes", "user", "runtime", "options")
        settings = {name: list(value) if isinstance(value := getattr(self, name), tuple) else value for name in names}
        return {"image": self.image, "service": self.service, "memory_mb": self.memory_mb, "settings": settings}
