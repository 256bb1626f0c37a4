"""What a run has of this machine before its first process: a NATS server, and a port for its gateway."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from areal_actors.errors import SetupError
from areal_actors.messages import KINDS
from areal_actors.recipe.recipe import Recipe
from areal_actors.run_folder import RunFolder, ServerAddress
from bus.nats import DUPLICATE_SECONDS, NatsBus
from bus.server import EmbeddedServer, resolve_server

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


async def recognise_the_past(recipe: Recipe, folder: RunFolder) -> None:
    """Let the run's own server know messages from before a pause, so that what is said again by those who go on is kept once.

    A server that somebody else runs knows those of the last hour.

    Raises:
        BusError: the log cannot be read.
    """
    if resolve_server(recipe.bus.url or None):
        return
    server = await EmbeddedServer.start(folder.nats)
    try:
        bus = await NatsBus.connect(server.url, recipe.run, name="supervisor", token=server.token, kinds=KINDS)
        try:
            if last := await bus.last_event():
                await bus.remember_ids(time.time() - last.time + DUPLICATE_SECONDS)
        finally:
            await bus.close()
    finally:
        await server.stop()
