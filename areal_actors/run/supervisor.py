"""The supervisor: starts the processes of a run, restarts them as the tree says, and leaves none behind.

Children get SIGTERM and a few seconds to say goodbye, then SIGKILL. Each reads a pipe that only this process holds, so
that they end with it, however it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

import structlog

from areal_actors.messages import ActorFailed
from areal_actors.recipe.recipe import Recipe
from areal_actors.run.process import HOPELESS, has_tensors, placed
from areal_actors.run.restarts import Restarts
from areal_actors.run_folder import RunFolder
from bus.errors import BusError
from bus.message import Event

STOP_SECONDS = 8.0
RESTART_SECONDS = 0.2
"""Between a death and the fresh start."""
LAST_LINES = 5
FIRST_TO_STOP = ("rollout_worker", "session_manager")

Say = Callable[[Event], Awaitable[None]]
logger = structlog.get_logger(__name__)


@dataclass
class Child:
    """One process and the task that waits for its end."""

    name: str
    process: asyncio.subprocess.Process
    watcher: asyncio.Task[None] | None = None
    ending: bool = False
    """Its end is asked for."""


class Supervisor:
    """Owns every process of the run but the NATS server."""

    def __init__(self, recipe: Recipe, folder: RunFolder, say: Say) -> None:
        self.recipe = recipe
        self.folder = folder
        self.say = say
        self.restarts = Restarts(recipe.supervisors, recipe.actors)
        self.children: dict[str, Child] = {}
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Resolved with the reason when the run cannot go on."""
        self._stopping = False
        self._deaths = asyncio.Lock()

    async def start(self, names: Sequence[str]) -> None:
        """Start these processes."""
        for name in names:
            await self._spawn(name)

    def startable(self, kind: str = "") -> list[str]:
        """Processes that have not been started, with an actor of this kind or of any, in the order of the tree."""
        fresh = [name for name in self.restarts.start_order() if name not in self.children]
        return [name for name in fresh if not kind or kind in placed(self.recipe, name).values()]

    def actors(self, names: Iterable[str]) -> set[str]:
        """The name of every actor in these processes."""
        return {actor for name in names for actor in placed(self.recipe, name)}

    async def stop(self) -> None:
        """End every process; none gets longer than `STOP_SECONDS` to say goodbye.

        Agents first, then the gateway, then what stands behind it: nobody sees what he uses fail because the run is over.
        """
        self._stopping = True
        for kind in (*FIRST_TO_STOP, ""):
            alive = [child for child in self.children.values() if child.process.returncode is None]
            await self._end_all(child for child in alive if not kind or kind in placed(self.recipe, child.name).values())

    def kill(self, name: str) -> None:
        """End a process that does not answer; it is restarted like any that died."""
        if (child := self.children.get(name)) is not None and child.process.returncode is None:
            logger.warning("no heartbeat", process=name, pid=child.process.pid)
            child.process.kill()

    async def _spawn(self, name: str) -> None:
        module = "tensor_process" if has_tensors(self.recipe, name) else "process"
        self.folder.failure_of(name).unlink(missing_ok=True)
        with self.folder.output_of(name).open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", f"areal_actors.run.{module}", str(self.folder.path), name),
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **self._threads(name)},
            )
        child = Child(name, process)
        self.children[name] = child
        child.watcher = asyncio.create_task(self._watch(child))

    def _threads(self, name: str) -> dict[str, str]:
        """One busy thread per process unless the recipe says otherwise: waiting OpenMP threads spin, and cost more than they give."""
        kinds = set(placed(self.recipe, name).values())
        threads = max(
            self.recipe.trainer.threads if "trainer" in kinds else 1,
            self.recipe.generation.threads if "inference_worker" in kinds else 1,
        )
        return {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}

    async def _watch(self, child: Child) -> None:
        """Wait for a child's end and do what the tree says."""
        await child.process.wait()
        if child.ending or self._stopping:
            return
        reason = self._reason(child)
        logger.warning("process died", process=child.name, pid=child.process.pid, reason=reason)
        try:
            for actor in placed(self.recipe, child.name):
                await self.say(ActorFailed(actor=actor, process=child.name, reason=reason))
        except BusError as error:
            self._fail(f"{child.name} died ({reason}), and it could not be said: {error}")
            return
        if child.process.returncode == HOPELESS:
            self._fail(f"{child.name}: {reason}")
            return
        async with self._deaths:
            await self._replace(child, reason)

    async def _replace(self, child: Child, reason: str) -> None:
        if self._stopping:
            return
        decision = self.restarts.died(child.name, time.monotonic())
        if decision.give_up:
            self._fail(f"{decision.give_up}; last reason: {reason}")
            return
        restarted = [name for name in decision.restart if name in self.children]
        await self._end_all(self.children[name] for name in restarted if name != child.name)
        await asyncio.sleep(RESTART_SECONDS)
        for name in restarted:
            if not self._stopping:
                await self._spawn(name)

    def _fail(self, reason: str) -> None:
        if not self.failed.done():
            self.failed.set_result(reason)

    async def _end_all(self, children: Iterable[Child]) -> None:
        await asyncio.gather(*(self._end(child) for child in children))

    async def _end(self, child: Child) -> None:
        child.ending = True
        with contextlib.suppress(ProcessLookupError):
            child.process.terminate()
        try:
            await asyncio.wait_for(child.process.wait(), STOP_SECONDS)
        except TimeoutError:
            logger.warning("did not stop in time", process=child.name, seconds=STOP_SECONDS)
            child.process.kill()
            await child.process.wait()

    def _reason(self, child: Child) -> str:
        """Why a process ended: its own words, the signal, or the last it printed."""
        failure, output = self.folder.failure_of(child.name), self.folder.output_of(child.name)
        if failure.exists():
            return failure.read_text().strip()
        code = child.process.returncode or 0
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        last = output.read_text(errors="replace").strip().splitlines()[-LAST_LINES:]
        return f"ended with status {code}" + (f": {' / '.join(last)}" if last else "")
