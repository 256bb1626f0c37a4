"""The container runtime of this machine: its images, the arguments of `run`, and containers of ended owners.

The arguments used are those that podman and docker have in common. A container's name has its owner, the process that
started it, so that the next owner on the machine removes what one that was killed has left.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import secrets
import shlex
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from areal_actors.containers.service import RUNTIMES
from areal_actors.core.container_settings import ContainerSettings
from areal_actors.core.errors import SetupError

ANSWER_SECONDS = 60.0
"""Time limit of a question to the runtime, whose service may have to start."""
MOST_FILES = 4096
"""Open files and, where the system counts them by user, processes; less where this process may open fewer."""
NAME = re.compile(r"areal-(?P<host>.+)-(?P<pid>\d+)-(?P<started>\d+)-[0-9a-f]+")


class ContainerImage(NamedTuple):
    """An image on this machine."""

    id: str
    digest: str
    """Name by digest, as its registry has it; empty for an image that was made here."""


class Mount(NamedTuple):
    """A file or folder of this machine in a container."""

    source: Path
    target: str
    is_writable: bool = False


class ContainerRuntime(NamedTuple):
    """A program that takes the arguments of podman and docker, on this machine or another."""

    program: str
    transport: tuple[str, ...] = ()
    """Command that runs a line of a shell on another machine, as `ssh host`; empty for this one."""

    def words(self, *arguments: str) -> list[str]:
        """Returns the command that runs it with arguments."""
        words = [self.program, *arguments]
        return [*self.transport, shlex.join(words)] if self.transport else words

    def find_image(self, image: str) -> ContainerImage:
        """Returns an image of this machine.

        Raises:
            SetupError: there is none of this name, or the runtime does not answer.
        """
        words = self.words("image", "inspect", image)
        answer = _ask(words)
        if answer.returncode:
            reason = _last_line(answer.stderr)
            place = f"on {self.transport[-1]}" if self.transport else "on this machine"
            raise SetupError(
                f"task.container.image: there is no image {image} {place} ({reason}); run"
                f" `{Path(self.program).name} pull {image}`{' there' if self.transport else ''}, or fix the name"
            )
        facts = json.loads(answer.stdout)[0]
        return ContainerImage(id=facts["Id"], digest=next(iter(facts.get("RepoDigests") or ()), ""))

    def run_words(
        self,
        settings: ContainerSettings,
        *,
        name: str,
        image: str,
        command: Sequence[str],
        mounts: Sequence[Mount] = (),
        scratch: str = "",
        memory_mb: int = 0,
    ) -> list[str]:
        """Returns the command that runs a container, which is removed when its first process has ended.

        Args:
            settings: its limits, network and user.
            name: as from `container_name`.
            image: name or id.
            command: program and arguments, instead of the image's entry point.
            mounts: files and folders of this machine.
            scratch: folder in memory that any user of the container may write to; empty for none.
            memory_mb: memory of all its processes in MiB, without swap; 0 sets no limit.
        """
        files = min(MOST_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        words = ["run", "--rm", "--interactive", "--name", name, "--pull", "never"]
        words += ["--network", settings.network, "--pids-limit", str(settings.max_processes)]
        words += ["--cap-drop", "all", "--security-opt", "no-new-privileges"]
        words += ["--ulimit", f"nofile={files}:{files}", "--ulimit", f"nproc={MOST_FILES}:{MOST_FILES}"]
        if memory_mb:
            words += ["--memory", f"{memory_mb}m", "--memory-swap", f"{memory_mb}m"]
        if settings.cpus:
            words += ["--cpus", f"{settings.cpus:g}"]
        if settings.user:
            words += ["--user", settings.user]
        if scratch:
            words += ["--tmpfs", f"{scratch}:rw,exec,mode=1777"]
        for mount in mounts:
            words += ["--volume", f"{mount.source}:{mount.target}:{'rw' if mount.is_writable else 'ro'}"]
        return self.words(*words, *settings.options, "--entrypoint", command[0], image, *command[1:])

    def remove_words(self, *names: str) -> list[str]:
        """Returns the command that kills and removes containers."""
        at_once = ["--time", "0"] if Path(self.program).name == "podman" else []
        return self.words("rm", "--force", *at_once, *names)

    async def remove(self, name: str) -> None:
        """Kill and remove a container, which may be gone already."""
        await self.run_quietly(self.remove_words(name))

    async def run_quietly(self, words: Sequence[str]) -> None:
        """Run a command of the runtime whose answer does not matter; one that takes too long is given up."""
        null = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(*words, stdin=null, stdout=null, stderr=null)
        try:
            await asyncio.wait_for(process.wait(), ANSWER_SECONDS)
        except TimeoutError:
            import structlog  # noqa: PLC0415 `check` reads this module for every recipe and needs no logger

            message = "the container runtime does not answer"
            structlog.get_logger(__name__).warning(message, command=" ".join(words), seconds=ANSWER_SECONDS)
            process.kill()
            await process.wait()

    def remove_left(self) -> list[str]:
        """Remove the containers of ended owners on this machine; returns their names."""
        listed = _ask(self.words("ps", "--all", "--filter", "name=areal-", "--format", "{{.Names}}"))
        left = [name for name in listed.stdout.decode().split() if _is_left(name)]
        if left:
            _ask(self.remove_words(*left))
        return left


def find_runtime(runtime: str = "") -> ContainerRuntime:
    """Returns the runtime of this name, or the first that is installed.

    Raises:
        SetupError: it is not installed.
    """
    for name in (runtime,) if runtime else RUNTIMES:
        if program := shutil.which(name):
            return ContainerRuntime(program)
    missing = f"`{runtime}` is not" if runtime else "neither `podman` nor `docker` is"
    raise SetupError(
        f"task.container.runtime: {missing} installed on this machine; install one, or write `runner ="
        ' "subprocess"`, which limits memory and time and shuts in neither files nor network'
    )


def container_name() -> str:
    """Returns a new name of a container that this process owns."""
    owner = psutil.Process()
    return f"areal-{_host()}-{owner.pid}-{int(owner.create_time() * 100)}-{secrets.token_hex(4)}"


def _is_left(name: str) -> bool:
    """Returns True if a container's owner was a process of this machine that has ended."""
    if (owner := NAME.fullmatch(name)) is None or owner["host"] != _host():
        return False
    try:
        started = int(psutil.Process(int(owner["pid"])).create_time() * 100)
    except psutil.NoSuchProcess:
        return True
    return started != int(owner["started"])


def _host() -> str:
    return re.sub(r"[^a-zA-Z0-9.]", "", socket.gethostname()) or "host"


def _ask(words: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"task.container.runtime: `{' '.join(words[:3])}` does not answer: {error}") from error


def _last_line(output: bytes) -> str:
    return (output.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
