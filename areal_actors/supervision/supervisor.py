"""The supervisor: starts the processes of a run, restarts them by the supervision tree, and ends all of them.

Children get SIGTERM and `watchdog.stop_seconds`, then SIGKILL. Each reads a pipe that only this process holds, so
that they end with it. A process that fails twice at its start for the same reason ends the run: a third start
would fail, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec
import structlog

from areal_actors.core.devices import detect_cuda
from areal_actors.core.durable_files import FULL_BYTES, explain_os_error, write_refusal
from areal_actors.core.host_settings import JOIN_TOKEN
from areal_actors.core.proxies import proxy_exceptions
from areal_actors.folder.run_folder import BusAddresses, RunFolder
from areal_actors.messages import ActorFailed
from areal_actors.processes.process import (
    EXIT_FAILED,
    EXIT_FATAL,
    EXIT_START_FAILED,
    FAILED_WITH,
    SCARCE,
    actors_of_process,
    has_tensors,
)
from areal_actors.recipe.device_map import device_variables
from areal_actors.recipe.recipe import Recipe
from areal_actors.recipe.supervision import gateways_of_others
from areal_actors.supervision.child_processes import ChildProcess, ProcessStart, ProcessStarter, environment_of
from areal_actors.supervision.left_processes import end_left_processes, make_mark
from areal_actors.supervision.liveness import START_OVERDUE
from areal_actors.supervision.restarts import Restarts
from areal_bus.errors import BusError
from areal_bus.message import Event

RESTART_SECONDS = 0.2
"""Delay between a death and the restart."""
SCARCE_SECONDS, SCARCE_POLL_SECONDS = 30.0, 1.0
"""Time in which a process that cannot be started for want of descriptors or processes is tried again, and the
interval."""
LAST_LINES = 5
CREDENTIAL_VARIABLES = ("NATS_URL", JOIN_TOKEN)
"""Environment variables removed from all processes: none needs them, and an agent would inherit them."""
TRACEBACK = "Traceback (most recent call last)"
CALLED_EXIT = (
    "nothing has asked it to end, and it has no error: code that it runs, as an agent, a reward or a library, has"
    " called `os._exit`; raise an exception instead, or run agents in processes of their own (task.runner ="
    ' "subprocess")'
)
FIRST_TO_STOP = ("rollout_worker", "session_manager")

Publish = Callable[[Event], Awaitable[None]]
logger = structlog.get_logger(__name__)


@dataclass
class Child:
    """One process and the task that waits for its end."""

    name: str
    process: ChildProcess
    watcher: asyncio.Task[None] | None = None
    ending: bool = False
    """True once it was asked to end."""
    killed: str = ""
    """Reason of a kill by `Supervisor.kill`; empty if it was not killed."""

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)


class Supervisor:
    """Owns every process of the run except the NATS server."""

    def __init__(self, recipe: Recipe, folder: RunFolder, publish: Publish, addresses: BusAddresses) -> None:
        self.recipe = recipe
        self.cuda = detect_cuda()
        self.folder = folder
        self.publish = publish
        self.addresses = addresses
        self.restarts = Restarts(recipe.supervisors, recipe.actors)
        self.placed = {name: actors_of_process(recipe, name) for name in self.restarts.start_order()}
        """Kind of each actor by name, for every process of the run, in the order of the tree."""
        self.left = frozenset(gateways_of_others(recipe).values())
        """Processes that are not started with the others: gateways, until they are taken over from other hosts."""
        self.starts = {name: self.start_of(name) for name in self.placed}
        self.starter = ProcessStarter(folder.path, recipe.watchdog.start_seconds, cuda=self.cuda.count > 0)
        for start in self.starts.values():
            self.starter.expect(start)
        self.children: dict[str, Child] = {}
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Resolved with the reason when the run cannot go on."""
        self.start_failures: dict[str, str] = {}
        """Processes whose last end was a failure at start, and the reason without its numbers."""
        self._stopping = False
        self._deaths = asyncio.Lock()

    async def start(self, names: Sequence[str]) -> None:
        """Start these processes; those with torch last longer and do not delay others."""
        starting = [asyncio.create_task(self._spawn(name)) for name in names]
        try:
            await asyncio.gather(*starting)
        finally:
            for task in starting:
                task.cancel()
            await asyncio.gather(*starting, return_exceptions=True)

    def startable(self, kind: str = "") -> list[str]:
        """Returns the processes not yet started, with an actor of this kind (empty: any), in the order of the tree."""
        waiting = (name for name in self.placed if name not in self.children and name not in self.left)
        return [name for name in waiting if not kind or kind in self.placed[name].values()]

    def kinds(self) -> dict[str, frozenset[str]]:
        """Returns the kinds of actors of every process."""
        return {name: frozenset(actors.values()) for name, actors in self.placed.items()}

    def instances(self) -> dict[str, str]:
        """Returns the kind of every actor of the run, by name."""
        return {actor: kind for actors in self.placed.values() for actor, kind in actors.items()}

    async def stop(self) -> None:
        """End every process, each within `watchdog.stop_seconds`.

        Agents end first, then the gateway, then the rest: no process sees a service fail because the run ends.
        """
        self._stopping = True
        for kind in (*FIRST_TO_STOP, ""):
            await self._end_all(
                child for child in self._running() if not kind or kind in self.placed[child.name].values()
            )
        await self.starter.close()
        await self._end_left_processes()

    async def kill_all(self) -> None:
        """Kill every process at once: without a bus none can work or publish."""
        self._stopping = True
        running = self._running()
        for child in running:
            child.send(signal.SIGKILL)
        await asyncio.gather(*(child.process.wait() for child in running))
        await self.starter.close()
        await self._end_left_processes()

    async def _end_left_processes(self) -> None:
        if ended := await asyncio.to_thread(end_left_processes, self.folder.path):
            logger.warning("ended programs that an agent or a reward had left running", programs=ended)

    def _running(self) -> list[Child]:
        return [child for child in self.children.values() if child.process.returncode is None]

    def alive(self) -> dict[str, int]:
        """Returns name and id of every process that runs and is not being stopped."""
        return {child.name: child.process.pid for child in self._running() if not (child.ending or child.killed)}

    def kill(self, name: str, pid: int, reason: str) -> None:
        """Kill the process with this id, unless it has been replaced; it is restarted as after any death."""
        child = self.children.get(name)
        if child is not None and child.process.pid == pid and child.process.returncode is None and not child.killed:
            logger.warning("killed a process", process=name, pid=pid, reason=reason)
            child.killed = reason
            child.send(signal.SIGKILL)

    async def _spawn(self, name: str) -> None:
        self.folder.failure_of(name).unlink(missing_ok=True)
        address = msgspec.json.encode(self.addresses.of(name)) + b"\n"
        process = await self.starter.start(self.starts[name], self.folder.output_of(name), address)
        child = Child(name, process)
        self.children[name] = child
        child.watcher = asyncio.create_task(self._watch(child))

    def start_of(self, name: str) -> ProcessStart:
        """Returns program and environment of a process."""
        return ProcessStart(
            f"areal_actors.processes.{'tensor_process' if has_tensors(self.recipe, name) else 'process'}",
            (str(self.folder.path), name),
            environment_of(
                child_environment(self.recipe, self.placed[name].values()),
                device_variables(self.recipe, name, self.cuda),
                make_mark(self.folder.path),
            ),
        )

    async def _watch(self, child: Child) -> None:
        """Wait for a child's end and restart it by the tree."""
        await child.process.wait()
        if child.ending or self._stopping:
            return
        reason = reason_of_end(self.folder, child.name, child.process.returncode or 0, child.killed)
        logger.warning("process died", process=child.name, pid=child.process.pid, reason=reason)
        try:
            for actor in self.placed[child.name]:
                await self.publish(ActorFailed(actor=actor, process=child.name, reason=reason))
        except BusError as error:
            self._fail(f"{child.name} died ({reason}), and its failure could not be published: {error}")
            return
        if child.process.returncode == EXIT_FATAL and is_own_end(self.folder, child.name, EXIT_FATAL):
            self._fail(f"{child.name}: {reason}")
            return
        if self._fails_again(child, reason):
            self._fail(f"{child.name} failed twice at its start for the same reason: {reason}")
            return
        async with self._deaths:
            await self._replace(child, reason)

    def _fails_again(self, child: Child, reason: str) -> bool:
        """Returns True if this process failed at its start for the same reason as last time.

        Numbers such as process ids may differ.
        """
        status = child.process.returncode or 0
        if CALLED_EXIT in reason:
            status = EXIT_FAILED
        at_start = (
            status == EXIT_START_FAILED
            or (status > 0 and status != EXIT_FAILED)
            or (bool(child.killed) and START_OVERDUE in child.killed)
        )
        kind, before = re.sub(r"[0-9.]+", "", reason), self.start_failures.pop(child.name, None)
        if at_start:
            self.start_failures[child.name] = kind
        return at_start and kind == before

    async def _replace(self, child: Child, reason: str) -> None:
        if self._stopping:
            return
        decision = self.restarts.decide_restart(child.name, time.monotonic())
        if decision.give_up:
            self._fail(f"{decision.give_up}; last reason: {reason}")
            return
        restarted = [name for name in decision.restart if name in self.children]
        await self._end_all(self.children[name] for name in restarted if name != child.name)
        await asyncio.sleep(RESTART_SECONDS)
        for name in restarted:
            await self._spawn_again(name)

    async def _spawn_again(self, name: str) -> None:
        """Start a process in place of one that has ended.

        Where descriptors or processes are wanting, it tries for a while until they are there.
        """
        until = time.monotonic() + SCARCE_SECONDS
        while not self._stopping:
            try:
                await self._spawn(name)
            except OSError as error:
                if error.errno not in SCARCE or time.monotonic() > until:
                    self._fail(f"{name} cannot be started again: {explain_os_error(error)}")
                    return
                logger.warning("a process cannot be started again yet", process=name, reason=explain_os_error(error))
                await asyncio.sleep(SCARCE_POLL_SECONDS)
            else:
                return

    def _fail(self, reason: str) -> None:
        if not self.failed.done():
            self.failed.set_result(reason)

    async def _end_all(self, children: Iterable[Child]) -> None:
        await asyncio.gather(*(self._end(child) for child in children))

    async def _end(self, child: Child) -> None:
        child.ending = True
        child.send(signal.SIGTERM)
        try:
            await asyncio.wait_for(child.process.wait(), self.recipe.watchdog.stop_seconds)
        except TimeoutError:
            logger.warning("did not stop in time", process=child.name, seconds=self.recipe.watchdog.stop_seconds)
            child.send(signal.SIGKILL)
            await child.process.wait()


def child_environment(recipe: Recipe, kinds: Collection[str]) -> dict[str, str]:
    """Returns the environment of a process with these kinds of actors.

    It has its threads, but neither credentials nor proxies to the gateway. It has one busy thread unless the recipe
    sets more: waiting OpenMP threads spin, and cost more than they gain.
    """
    inherited = {variable: value for variable, value in os.environ.items() if variable not in CREDENTIAL_VARIABLES}
    threads = max(
        recipe.trainer.threads if "trainer" in kinds else 1,
        recipe.generation.threads if "inference_worker" in kinds else 1,
    )
    inherited |= proxy_exceptions(inherited, [recipe.gateway.url(recipe.gateway.port)])
    return {
        **inherited,
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
    }


def reason_of_end(folder: RunFolder, name: str, code: int, killed: str = "") -> str:
    """Returns why a process ended.

    That is its own error, the reason of the kill, the signal, or the last lines of its output.
    """
    failure, output = folder.failure_of(name), folder.output_of(name)
    if failure.exists():
        return failure.read_text().strip()
    if killed:
        return killed
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    lines = output.read_text(errors="replace").strip().splitlines()
    has_traceback = any(line.startswith(TRACEBACK) for line in lines)
    last = lines[-1:] if has_traceback else lines[-LAST_LINES:]
    if is_own_end(folder, name, code):
        last = [*last, f"its error could not be written to {failure}, as on a full disk or without file descriptors"]
    elif not has_traceback:
        last = [*last, CALLED_EXIT]
    return f"ended with status {code}" + (f": {' / '.join(last)}" if last else "")


def is_own_end(folder: RunFolder, name: str, code: int) -> bool:
    """Returns True if a process has ended itself with an `EXIT_` status.

    Code of a user that it runs may end it with the same one.
    """
    if code not in (EXIT_FAILED, EXIT_FATAL, EXIT_START_FAILED):
        return False
    if (
        folder.failure_of(name).exists()
        or shutil.disk_usage(folder.path).free < FULL_BYTES
        or write_refusal(folder.logs)
    ):
        return True
    lines = folder.output_of(name).read_text(errors="replace").strip().splitlines()
    return any(line.startswith(FAILED_WITH) for line in lines[-LAST_LINES:])
