"""The NATS server of a run, and a port for its gateway."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec

from areal_actors.core.errors import SetupError
from areal_actors.messages import BusRestarted
from areal_actors.recipe.recipe import Recipe
from areal_actors.run.bus_access import users_of
from areal_actors.run.run_folder import BusAddresses, RunFolder, ServerAddress
from bus.errors import BusError
from bus.message import Event
from bus.nats import NatsBus
from bus.server import resolve_server
from bus.server_keeper import RestartSettings, ServerKeeper
from bus.users import MONITOR, without_credentials

STABLE_PORTS = range(20_000, 32_000)
"""Ports below the range that Linux and macOS use for outgoing connections."""
TRIES = 20


def free_port(recipe: Recipe) -> int:
    """Returns the gateway's port; a free one is chosen once, so that a restarted gateway keeps its address.

    Raises:
        SetupError: the port is in use.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            if recipe.gateway.port == 0 and (quiet := _stable_port(recipe.gateway.host)):
                return quiet
            probe.bind((recipe.gateway.host, recipe.gateway.port))
        except OSError as error:
            raise SetupError(
                f"gateway.port: cannot listen on {recipe.gateway.host}:{recipe.gateway.port} ({error.strerror}); "
                "set another port, or 0 to take a free one"
            ) from error
        port: int = probe.getsockname()[1]
        return port


def _stable_port(host: str) -> int:
    """Returns a free port outside of the range for outgoing connections, so that it stays free until the gateway listens; 0 if none."""
    for _ in range(TRIES):
        port = secrets.choice(STABLE_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return port
    return 0


class RunServer:
    """The NATS server of a run: embedded and restarted when it dies, or external."""

    def __init__(self, addresses: BusAddresses, keeper: ServerKeeper | None = None) -> None:
        self.addresses = addresses
        self.keeper = keeper
        self.failed: asyncio.Future[str] = keeper.failed if keeper else asyncio.get_running_loop().create_future()
        """Resolved with a sentence when the server is gone and cannot be restarted."""

    async def report_restarts(self, publish: Callable[[Event], Awaitable[None]]) -> None:
        """Publish `BusRestarted` after every restart, until cancelled."""
        while self.keeper is not None:
            outage = await self.keeper.outages.get()
            with contextlib.suppress(BusError):
                await publish(BusRestarted(reason=outage.reason, seconds=outage.seconds, restarts=outage.restarts))


@asynccontextmanager
async def run_server(recipe: Recipe, folder: RunFolder) -> AsyncIterator[RunServer]:
    """Start the embedded NATS server with users for this run, or use the external one."""
    if url := resolve_server(recipe.bus.url or None):
        owner = ServerAddress(url=url, run=recipe.run, pid=os.getpid())
        monitor = msgspec.structs.replace(owner, url=recipe.bus.monitor_url or url)
        yield RunServer(BusAddresses(owner=owner, monitor=monitor))
        return
    users = users_of(recipe)
    keeper = await ServerKeeper.start(folder.nats, _keeping(recipe), sync_interval=recipe.bus.sync, users=users)
    server = keeper.server
    owner = ServerAddress(url=server.url, run=recipe.run, pid=os.getpid())
    monitor = msgspec.structs.replace(owner, url=users.url(MONITOR, server.address))
    processes = {name: users.url(name, server.address) for name in users.members()}
    try:
        yield RunServer(BusAddresses(owner=owner, monitor=monitor, processes=processes), keeper)
    finally:
        await keeper.stop()


def _keeping(recipe: Recipe) -> RestartSettings:
    bus = recipe.bus
    return RestartSettings(max_restarts=bus.max_restarts, window_seconds=bus.window_seconds, answer_seconds=bus.answer_seconds)


async def refuse_old_log(bus: NatsBus, server: ServerAddress) -> None:
    """Check that the log of a new run is empty.

    Raises:
        SetupError: the server already has a log of this name.
    """
    async for _ in bus.log():
        place = without_credentials(server.url)
        raise SetupError(f"the NATS server at {place} has the log of an earlier run '{bus.run}'; choose another name: run=NAME")
