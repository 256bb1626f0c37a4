"""What a run has of this machine before its first process: a NATS server, and a port for its gateway."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec

from areal_actors.errors import SetupError
from areal_actors.messages import BusRestarted
from areal_actors.recipe.recipe import Recipe
from areal_actors.run.bus_access import users_of
from areal_actors.run_folder import BusAddresses, RunFolder, ServerAddress
from bus.errors import BusError
from bus.message import Event
from bus.nats import NatsBus
from bus.server import resolve_server
from bus.server_keeper import RestartSettings, ServerKeeper
from bus.users import MONITOR, without_credentials

QUIET_PORTS = range(20_000, 32_000)
"""Below those from which Linux and macOS take the ports of outgoing connections."""
TRIES = 20


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


class RunServer:
    """The run's NATS server: its own, which is started again when it dies, or somebody's."""

    def __init__(self, addresses: BusAddresses, keeper: ServerKeeper | None = None) -> None:
        self.addresses = addresses
        self.keeper = keeper
        self.failed: asyncio.Future[str] = keeper.failed if keeper else asyncio.get_running_loop().create_future()
        """Resolved with a sentence when the server is gone and cannot be started again."""

    async def report_restarts(self, say: Callable[[Event], Awaitable[None]]) -> None:
        """Publish `BusRestarted` after every restart, until cancelled."""
        while self.keeper is not None:
            outage = await self.keeper.outages.get()
            with contextlib.suppress(BusError):
                await say(BusRestarted(reason=outage.reason, seconds=outage.seconds, restarts=outage.restarts))


@asynccontextmanager
async def run_server(recipe: Recipe, folder: RunFolder) -> AsyncIterator[RunServer]:
    """The run's NATS server: its own, with users made for this run, or somebody's."""
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
    """A run begins with an empty log.

    Raises:
        SetupError: the server has one of this name already.
    """
    async for _ in bus.log():
        place = without_credentials(server.url)
        raise SetupError(f"the NATS server at {place} has the log of an earlier run '{bus.run}'; give this one another name: run=NAME")
