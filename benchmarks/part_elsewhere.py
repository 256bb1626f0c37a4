"""Parts of another host for `part_faults.py`.

Joined workers, their `areal-actors join`, and gateways here and there.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import psutil
from part_scene import RECOVERY_SECONDS, SETTINGS, Part, Scene, command_line, family, until
from support.live_run import LiveRun
from support.other_host import Joiner, OtherHost

from areal_actors.messages import ActorStarted, WorkerJoined

ROLES = ("rollout_worker", "inference_worker", "gateway")
OWN_GATEWAY, OTHER_GATEWAY = "session_manager-0", "session_manager-1"
GATEWAY = "session_manager"
"""Role of a gateway in events."""


class JoinedRole:
    """One `areal-actors join` of a role, with one worker."""

    def __init__(self, scene: Elsewhere, role: str) -> None:
        self.scene, self.role = scene, role
        self.joiner: Joiner | None = None

    async def join(self) -> None:
        """Start an `areal-actors join`, again after the last one was killed."""
        self.joiner = self.scene.host.join("--credential", self.scene.credential, "--role", self.role)

    def host(self) -> list[psutil.Process]:
        """Returns the command and all below it."""
        return family(self.joiner.process.pid) if self.joiner is not None else []

    def command(self) -> list[psutil.Process]:
        """Returns the command alone."""
        return self.host()[:1]

    def worker(self) -> list[psutil.Process]:
        """Returns the process of its worker."""
        return [process for process in self.host()[1:] if "areal_actors.processes" in command_line(process)][:1]

    def names(self) -> tuple[str, ...]:
        """Returns how the names of its actors begin."""
        return (OTHER_GATEWAY, f"{GATEWAY}-1000") if self.role == "gateway" else (f"{self.role}-",)

    def ready(self) -> bool:
        """Returns True if the newest worker of the role serves.

        A gateway may have been taken over by the run's own host.
        """
        run, asked = self.scene.run, GATEWAY if self.role == "gateway" else self.role
        workers = [event.worker for event in run.received(WorkerJoined) if event.role == asked]
        serving = [event.process for event in run.received(ActorStarted) if event.actor == OTHER_GATEWAY]
        if asked == GATEWAY and serving and not serving[-1].startswith(GATEWAY):
            return True
        return bool(workers) and self.scene.serves(workers[-1]) and bool(self.worker())


class Elsewhere(Scene):
    """A run whose agents, engine and second gateway are on another host."""

    def __init__(self, run: LiveRun, host: OtherHost, random: Random) -> None:
        super().__init__(run, random)
        self.host, self.credential = host, ""
        self.roles = {role: JoinedRole(self, role) for role in ROLES}
        for role, joined in self.roles.items():
            name = "gateway elsewhere" if role == "gateway" else f"joined {role.replace('_', ' ')}"
            self.parts[name] = Part(joined.worker, joined.names, None, joined.ready)
            self.parts[f"areal-actors join of a {role}"] = Part(joined.command, joined.names, joined.join, joined.ready)
            self.parts[f"host of a {role}"] = Part(joined.host, joined.names, joined.join, joined.ready)
        self.parts["gateway here"] = Part(
            self._own_gateway, lambda: (OWN_GATEWAY,), None, lambda: bool(self._own_gateway())
        )

    async def open(self) -> None:
        """Have one worker of each role join, and wait for steps."""
        file = self.run.folder / "join.json"
        await until(lambda: file.exists() or not self.alive(), RECOVERY_SECONDS)
        assert file.exists(), self.run.output()
        self.credential = str(shutil.copy(file, self.host.folder / "join.json"))
        for joined in self.roles.values():
            await joined.join()
        assert await self.reach(3), self.run.output()

    def _own_gateway(self) -> list[psutil.Process]:
        started = [event.pid for event in self.run.received(ActorStarted) if event.actor == OWN_GATEWAY]
        return family(started[-1])[:1] if started else []


@contextmanager
def elsewhere(folder: Path, random: Random) -> Iterator[Elsewhere]:
    """Start the run and its other host; both are removed."""
    with OtherHost(folder / "other", hidden=folder / "runs") as host:
        here = (f"bus.host={host.run_address}", f"gateway.host={host.run_address}")
        counts = (
            "actors.session_manager.count=2",
            "gateway.joined=1",
            "actors.rollout_worker.count=0",
            "actors.inference_worker.count=0",
        )
        run = LiveRun(folder / "runs", *SETTINGS, *here, *counts)
        try:
            yield Elsewhere(run, host, random)
        finally:
            run.abort()
