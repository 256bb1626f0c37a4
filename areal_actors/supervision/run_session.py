"""One launch of a recipe, for training and for serving.

It has the bus, the processes under supervision and health checks, and the end.
"""

from __future__ import annotations

import asyncio
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from areal_actors.folder.connections import retry_seconds
from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import (
    KINDS,
    AgentReturned,
    EngineStarting,
    Heartbeat,
    Throughput,
    TrainerProgress,
    WatchProbe,
)
from areal_actors.recipe.recipe import Recipe
from areal_actors.supervision.health import HealthMonitor
from areal_actors.supervision.nats_server import RunServer, refuse_old_log, run_server
from areal_actors.supervision.supervisor import Supervisor
from areal_bus.base import Bus, Stamp
from areal_bus.errors import BusError
from areal_bus.message import Event, Message
from areal_bus.nats import NatsBus

SENDER = "supervisor"


async def publish(bus: Bus, event: Event) -> None:
    """Publish an event as the supervisor."""
    await bus.publish(event, Stamp(id=uuid.uuid4().hex, sender=SENDER, time=time.time()))


def access(recipe: Recipe, folder: RunFolder) -> str:
    """Returns the gateway's address and the place of the key, for external agents.

    Empty if none connect to this run.
    """
    addresses = (
        recipe.gateway.urls(recipe.actors.session_manager.count - recipe.gateway.joined) or "gateways on other hosts"
    )
    return f"{addresses}, admin key in {folder.path / 'admin_key'}" if recipe.is_online() else ""


@asynccontextmanager
async def open_bus(recipe: Recipe, folder: RunFolder, *, fresh: bool) -> AsyncIterator[tuple[NatsBus, RunServer]]:
    """Start or find the server of a run, connect as its owner, and announce its addresses in the folder of the run.

    Raises:
        SetupError: the run is `fresh`, and the server already has a log of its name.
        BusError: the server cannot be started or reached.
    """
    async with run_server(recipe, folder) as server:
        owner, monitor = server.addresses.owner, server.addresses.monitor
        bus = await NatsBus.connect(
            owner.url,
            recipe.run,
            name=SENDER,
            kinds=KINDS,
            replicas=recipe.bus.replicas,
            compress=recipe.log.compress,
            blobs=folder.blobs,
            retry_for_seconds=retry_seconds(recipe),
            shares_log=True,
        )
        server.failed.add_done_callback(lambda failed: None if failed.cancelled() else bus.give_up(failed.result()))
        try:
            if fresh:
                await refuse_old_log(bus, owner)
            folder.announce(owner if recipe.is_served() else monitor, monitor=monitor)
            yield bus, server
        finally:
            await bus.close()
            folder.withdraw()


class Launch:
    """Processes of a recipe, from the first start to the last end."""

    def __init__(self, recipe: Recipe, folder: RunFolder, bus: NatsBus, server: RunServer) -> None:
        self.recipe, self.folder, self.bus, self.server = recipe, folder, bus, server
        self.supervisor = self.make_supervisor()
        self.health = HealthMonitor(recipe, bus, self.supervisor, self.publish, self.end)
        self.interrupted = asyncio.Event()
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Resolved with the error that ended the launch, empty when the recipe is completed."""

    def make_supervisor(self) -> Supervisor:
        """Create the supervisor of this launch."""
        return Supervisor(self.recipe, self.folder, self.publish, self.server.addresses)

    async def publish(self, event: Event) -> None:
        """Publish an event as the supervisor."""
        await publish(self.bus, event)

    def end(self, reason: str) -> None:
        """End the launch with this reason."""
        if not self.over.done():
            self.over.set_result(reason)

    def bus_answers(self) -> bool:
        """Returns True if the bus can still be used."""
        return not self.server.failed.done() and not self.health.server_silent

    @asynccontextmanager
    async def supervise(self, *listeners: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
        """Receive telemetry, run these listeners and the health checks, and stop all processes at the end."""
        work = (
            *listeners,
            self._receive_telemetry(),
            self.health.watch(),
            self.server.report_restarts(self.bus, self.publish),
        )
        tasks = [asyncio.create_task(coroutine) for coroutine in work]
        for task in tasks:
            task.add_done_callback(self.end_with_error)
        try:
            yield
        finally:
            await (self.supervisor.kill_all() if self.server.failed.done() else self.supervisor.stop())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive_telemetry(self) -> None:
        async with self.bus.telemetry(
            AgentReturned, EngineStarting, Heartbeat, Throughput, TrainerProgress, WatchProbe
        ) as inbox:
            async for delivery in inbox:
                self.handle(delivery.message, delivery.envelope.time)

    def handle(self, message: Message, sent: float) -> None:
        """Fold a message; `sent` is in seconds since the epoch by its sender's clock."""
        self.health.receive(message, sent)

    def end_with_error(self, task: asyncio.Task[None]) -> None:
        """End the launch with the error of a task: without the log or a process, the supervisor cannot go on."""
        if not task.cancelled() and (error := task.exception()) is not None and not self.over.done():
            self.over.set_result(str(error)) if isinstance(error, BusError) else self.over.set_exception(error)

    async def first_end(self, *ends: asyncio.Future[Any]) -> str | None:
        """Wait until the launch is over or interrupted, or one of `ends` is done.

        Returns the error if it is over, else None.
        """
        interrupted = asyncio.create_task(self.interrupted.wait())
        over = (self.server.failed, self.over, self.supervisor.failed)
        try:
            await asyncio.wait({*over, *ends, interrupted}, return_when=asyncio.FIRST_COMPLETED)
            return next((ended.result() for ended in over if ended.done()), None)
        finally:
            interrupted.cancel()


def on_interrupt(interrupted: asyncio.Event, answer: Callable[[str], object]) -> None:
    """Set an event at SIGINT and at SIGTERM, after answering with the name of the signal."""

    def handle(name: str) -> None:
        answer(name)
        interrupted.set()

    for ending, name in ((signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")):
        asyncio.get_running_loop().add_signal_handler(ending, handle, name)
