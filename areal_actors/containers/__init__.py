r"""Containers for agents and for the commands of their tools, by podman or docker, or another sandbox service.

from areal_actors.containers import Container

async with Container("docker.io/library/debian@sha256:…") as container:
    result = await container.run("ls -la", seconds=10)  # status, output and timed_out
"""

from areal_actors.containers.container import Container
from areal_actors.containers.service import CommandResult
from areal_actors.containers.ssh_service import SshService

__all__ = ["CommandResult", "Container", "SshService"]
