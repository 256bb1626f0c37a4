"""The table `[task.container]`: the container of an agent's processes."""

from __future__ import annotations

from areal_actors.core.config import Config, NonNegativeFloat, PositiveInt


class ContainerSettings(Config):
    """`[task.container]`: containers with the runner `container`, each of one agent process."""

    image: str = ""
    """Image that is on this machine, best by digest, as in `docker.io/library/python@sha256:…`; it has a Python
    interpreter, `task.python`. Nothing is pulled."""
    runtime: str = ""
    """Container runtime: `podman`, `docker`, or the path of a program that takes their arguments; empty for the first
    that is installed."""
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
