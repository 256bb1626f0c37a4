"""Sandboxes on another host, by its container runtime and ssh: images and limits are those of the host."""

from __future__ import annotations

from collections.abc import Sequence

from areal_actors.containers.podman_service import PodmanService
from areal_actors.containers.runtime import ContainerRuntime

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")
"""Ends connections to a host that is gone, and asks no question."""


class SshService(PodmanService):
    """Containers of a host that takes ssh connections; nothing of ours is installed there.

    A container ends with its connection, and so with the process that made it.
    """

    def __init__(self, host: str, *, runtime: str = "podman", ssh: Sequence[str] = SSH) -> None:
        """`host` as ssh takes it, as in `user@host`; `ssh` is the command before it."""
        super().__init__()
        remote = ContainerRuntime(runtime, (*ssh, host))
        self.find = lambda: remote
