"""Starts a run, watches over it, ends it: bus, processes, watchdog, display, summary; the whole life of `areal run`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from rich.console import Console

from areal_actors.batching import filter_named
from areal_actors.datasets import open_dataset
from areal_actors.engines.weight_folders import remove_all
from areal_actors.errors import SetupError
from areal_actors.example_checks import check_examples
from areal_actors.logs import log_to_terminal
from areal_actors.messages import (
    KINDS,
    ActorStarted,
    CheckpointSaved,
    EvaluationCompleted,
    GroupsUsedUp,
    Heartbeat,
    LossEvaluated,
    RunFinished,
    RunStalled,
    RunStarted,
    RunStopping,
    StepCompleted,
    TrainerPhase,
    WeightsPublished,
)
from areal_actors.monitor import follow
from areal_actors.recipe import Recipe
from areal_actors.rewards import MODEL, resolve_reward
from areal_actors.run_folder import RunFolder, ServerAddress
from areal_actors.summary import write_summary
from areal_actors.supervisor import Supervisor
from areal_actors.values import Value
from areal_actors.view import RunView
from areal_actors.watchdog import HEARD, Watchdog
from bus.base import Stamp
from bus.message import Event, Message
from bus.nats import NatsBus
from bus.server import EmbeddedServer, resolve_server

QUIET_PORTS = range(20_000, 32_000)
"""Below those from which Linux and macOS take the ports of outgoing connections."""
TRIES = 20
START_SECONDS = 120.0
"""For every actor to serve its mailbox."""
SAVE_SECONDS = 60.0
"""For the last checkpoint of a run that is interrupted."""
SHOW_SECONDS = 2.0
"""For the display to catch up with the end of the run."""
LOOK_SECONDS = 0.5
FINISHED, FAILED, INTERRUPTED = 0, 1, 130


def run(recipe: Recipe, *, profile: str, reason: str) -> int:
    """Run a recipe to its end; returns the exit status: 0, 1 when the run failed, 130 when it was interrupted.

    Raises:
        SetupError: something that the recipe needs is missing; nothing was started.
        BusError: the bus cannot be had; nothing is left running.
    """
    log_to_terminal()
    folder = RunFolder(Path(recipe.folder).absolute() / recipe.run)
    if pid := folder.live_supervisor():
        raise SetupError(f"run '{recipe.run}' is running already (process {pid}); stop it, or give this one another name: run=NAME")
    recipe = _checked(recipe)
    remove_all(recipe.run, folder.path)
    try:
        folder.create(recipe)
    except OSError as error:
        reason = f"folder: the run cannot be kept in {folder.path} ({error.strerror}); set folder to one that can be written"
        raise SetupError(reason) from error
    if recipe.is_online():
        told = f"agents outside: http://{recipe.gateway.host}:{recipe.gateway.port}, admin key in {folder.path / 'admin_key'}\n"
        sys.stdout.write(told)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_launch(recipe, folder, profile, reason))


def _checked(recipe: Recipe) -> Recipe:
    """Everything that can be missing is looked for before anything starts."""
    if recipe.learns_from_examples():
        check_examples(recipe)
    elif not recipe.is_online():
        open_dataset(recipe.task.dataset, seed=recipe.seed, held_out=recipe.task.held_out, columns=recipe.task.columns)
        if not recipe.task.reward.startswith(MODEL):
            resolve_reward(recipe.task.reward, options=recipe.task.reward_options)
    filter_named(recipe.batcher.filter, Path.cwd())
    return msgspec.structs.replace(recipe, gateway=msgspec.structs.replace(recipe.gateway, port=free_port(recipe)))


def free_port(recipe: Recipe) -> int:
    """The gateway's port; a free one is chosen once, so that a restarted gateway is found where it was.

    Raises:
        SetupError: it is taken.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            if recipe.gateway.port == 0 and (quiet := _quiet_port(recipe.gateway.host)):
                return quiet
            probe.bind((recipe.gateway.host, recipe.gateway.port))
        except OSError as error:
            raise SetupError(
                f"gateway.port: cannot listen on {recipe.gateway.host}:{recipe.gateway.port} ({error.strerror}); "
                "set another port, or 0 to take a free one"
            ) from error
        port: int = probe.getsockname()[1]
        return port


def _quiet_port(host: str) -> int:
    """A free port that the system gives to no outgoing connection in the time until the gateway listens; 0 if none is found."""
    for _ in range(TRIES):
        port = secrets.choice(QUIET_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return port
    return 0


async def _launch(recipe: Recipe, folder: RunFolder, profile: str, reason: str) -> int:
    async with run_server(recipe, folder) as (server, dead):
        bus = await NatsBus.connect(server.url, recipe.run, name="supervisor", token=server.token, kinds=KINDS, blobs=folder.blobs)
        try:
            await refuse_old_log(bus, server)
            folder.announce(server)
            started = RunStarted(recipe=msgspec.to_builtins(recipe), profile=profile, reason=reason, folder=str(folder.path))
            return await _Launch(recipe, folder, bus, dead).run(started)
        finally:
            await bus.close()
            (folder.path / "bus.json").unlink(missing_ok=True)
            remove_all(recipe.run, folder.path)


@asynccontextmanager
async def run_server(recipe: Recipe, folder: RunFolder) -> AsyncIterator[tuple[ServerAddress, asyncio.Future[str]]]:
    """The run's NATS server, its own or somebody's, and a future that tells of its death."""
    if url := resolve_server(recipe.bus.url or None):
        yield ServerAddress(url=url, run=recipe.run, pid=os.getpid()), asyncio.get_running_loop().create_future()
        return
    server = await EmbeddedServer.start(folder.nats)
    dead = asyncio.ensure_future(server.wait_dead())
    try:
        yield ServerAddress(url=server.url, token=server.token, run=recipe.run, pid=os.getpid()), dead
    finally:
        dead.cancel()
        await server.stop()


async def refuse_old_log(bus: NatsBus, server: ServerAddress) -> None:
    """A run begins with an empty log.

    Raises:
        SetupError: the server has one of this name already.
    """
    async for _ in bus.log():
        raise SetupError(f"the NATS server at {server.url} has the log of an earlier run '{bus.run}'; give this one another name: run=NAME")


class Usage(Value):
    """What a process has used, as its last heartbeat said."""

    cpu_seconds: float
    peak_memory_bytes: int


class _Launch:
    """One run, from the first process to the last."""

    def __init__(self, recipe: Recipe, folder: RunFolder, bus: NatsBus, server_dead: asyncio.Future[str]) -> None:
        self.recipe, self.folder, self.bus, self.server_dead = recipe, folder, bus, server_dead
        self.supervisor = Supervisor(recipe, folder, self.say)
        self.watchdog = Watchdog(recipe.watchdog, time.time())
        self.view = RunView()
        self.unstarted = self.supervisor.actors()
        self.evaluations_due = (1 if recipe.learns_from_examples() else 2) if recipe.evaluation.tasks else 0
        self.steps = 0
        self.has_weights = False
        self.usage: dict[str, Usage] = {}
        self.saved_at = -1
        self.saved_again = asyncio.Event()
        self.interrupted = asyncio.Event()
        self.used_up: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Resolved with the reason why going on would teach nothing; what there is is saved first."""
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Resolved with the error that ended the run, empty when it has done what the recipe asked."""

    async def say(self, event: Event) -> None:
        """Publish an event of the supervisor's own."""
        await self.bus.publish(event, Stamp(id=uuid.uuid4().hex, sender="supervisor", time=time.time()))

    async def run(self, started: RunStarted) -> int:
        """Start, watch, end."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        loop.add_signal_handler(signal.SIGTERM, self._interrupt)
        console = Console()
        showing = asyncio.create_task(follow(self.bus, self.view, console, live=console.is_terminal))
        ears = [asyncio.create_task(self._hear_events()), asyncio.create_task(self._hear_telemetry()), asyncio.create_task(self._look())]
        try:
            await self.say(started)
            await self.supervisor.start()
            error = await self._outcome()
            if not self.server_dead.done():
                await self.say(RunFinished(steps=self.steps, error=error))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(showing), SHOW_SECONDS)
        finally:
            await self.supervisor.stop()
            for task in (*ears, showing):
                task.cancel()
            await asyncio.gather(*ears, showing, return_exceptions=True)
            self.folder.usage.write_bytes(msgspec.json.encode(self.usage))
        if self.steps and not self.server_dead.done():
            console.print(await write_summary(self.bus, self.folder.path))
        if error:
            sys.stderr.write(f"run '{self.recipe.run}' ended early: {error}\n")
        return INTERRUPTED if self.interrupted.is_set() else FAILED if error else FINISHED

    async def _outcome(self) -> str:
        """Wait for the end of the run, whatever ends it."""
        interrupted = asyncio.create_task(self.interrupted.wait())
        waiting: set[asyncio.Future[Any]] = {self.over, self.supervisor.failed, self.server_dead, self.used_up, interrupted}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for ended in (self.over, self.supervisor.failed, self.server_dead):
                if ended.done():
                    return ended.result()
            return await self._save_and_stop(f"{self.used_up.result()}; ended" if self.used_up.done() else "interrupted")
        finally:
            interrupted.cancel()

    async def _save_and_stop(self, why: str) -> str:
        """Before the last step: let the trainer save what it has; a second signal does without."""
        if not self.has_weights:
            return f"{why} before the first weights; there was nothing to save"
        was_interrupted = self.interrupted.is_set()
        self.interrupted.clear()
        self.saved_again.clear()
        await self.say(RunStopping(reason=why))
        impatient = asyncio.create_task(self.interrupted.wait())
        saved = asyncio.create_task(self.saved_again.wait())
        ends: set[asyncio.Future[Any]] = {impatient, saved, self.supervisor.failed}
        await asyncio.wait(ends, timeout=SAVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if was_interrupted:
            self.interrupted.set()
        impatient.cancel()
        saved.cancel()
        if not self.saved_again.is_set():
            return f"{why}; the trainer did not save a checkpoint within {SAVE_SECONDS:g} s"
        return f"{why} after {self.steps} of {self.recipe.steps} steps; the checkpoint of step {self.saved_at} is complete"

    def _interrupt(self) -> None:
        self.interrupted.set()

    async def _hear_events(self) -> None:
        by_subject = {kind.subject: kind for kind in KINDS}
        async for envelope in self.bus.log(follow=True):
            self._heard(envelope.open(by_subject[envelope.subject]))

    async def _hear_telemetry(self) -> None:
        async with self.bus.telemetry(Heartbeat, TrainerPhase) as inbox:
            async for delivery in inbox:
                self._heard(delivery.message)

    def _heard(self, message: Message) -> None:
        if isinstance(message, HEARD):
            self.watchdog.heard(message, time.time())
        if isinstance(message, Heartbeat):
            self.usage[message.process] = Usage(cpu_seconds=message.cpu_seconds, peak_memory_bytes=message.peak_memory_bytes)
        elif isinstance(message, ActorStarted):
            self.unstarted.discard(message.actor)
        elif isinstance(message, StepCompleted):
            self.steps = max(self.steps, message.step)
        elif isinstance(message, WeightsPublished):
            self.has_weights = True
        elif isinstance(message, GroupsUsedUp) and not self.used_up.done():
            self.used_up.set_result(message.reason)
        elif isinstance(message, CheckpointSaved):
            self.saved_at = message.step
            self.saved_again.set()
        elif isinstance(message, EvaluationCompleted | LossEvaluated) and message.weight_version == self.recipe.steps:
            self.evaluations_due -= 1
        if self.saved_at == self.recipe.steps and self.evaluations_due <= 0 and not self.over.done():
            self.over.set_result("")

    async def _look(self) -> None:
        """Now and then ask the watchdog what it thinks."""
        started = time.time()
        while not self.over.done():
            await asyncio.sleep(LOOK_SECONDS)
            now = time.time()
            for process in self.watchdog.silent_processes(now):
                self.supervisor.kill(process)
            if stall := self.watchdog.stalled(now):
                await self.say(RunStalled(sentence=stall[0], seconds=stall[1]))
            problem = self.watchdog.too_many_failures()
            if not problem and self.unstarted and now - started > START_SECONDS:
                problem = f"{', '.join(sorted(self.unstarted))} did not start within {START_SECONDS:g} s; see {self.folder.logs}"
            if problem and not self.over.done():
                self.over.set_result(problem)
