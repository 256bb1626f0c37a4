"""Connections to the bus of a run that exists: a live one, or the stored log of one that is over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from areal_actors.folder.run_folder import RunFolder, ServerAddress
from areal_actors.recipe.recipe import Recipe
from areal_bus.nats import NatsBus
from areal_bus.nats_streams import RETRY_SECONDS
from areal_bus.server import EmbeddedServer


def retry_seconds(recipe: Recipe) -> float:
    """Returns how long messages wait for the bus: a cluster may lose its majority for a while, and then elects a leader."""
    return max(RETRY_SECONDS, recipe.watchdog.bus_seconds) if recipe.bus.replicas > 1 else RETRY_SECONDS


@asynccontextmanager
async def connect_to_run(address: ServerAddress, folder: RunFolder | None, *, monitors: bool = False) -> AsyncIterator[NatsBus]:
    """Connect to the existing bus of a run, as its supervisor or as a monitor; without a folder, large bodies cannot be read."""
    name, blobs = "monitor" if monitors else "supervisor", folder.blobs if folder else None
    bus = await NatsBus.connect(address.url, address.run, name=name, token=address.token, blobs=blobs, monitors=monitors)
    try:
        yield bus
    finally:
        await bus.close()


@asynccontextmanager
async def open_store(
    store: Path, folder: RunFolder, run: str, *, owner_only: bool = False, monitors: bool = False
) -> AsyncIterator[NatsBus]:
    """Open the bus of a run that is not live, on a temporary server for its store."""
    server = await EmbeddedServer.start(store, owner_only=owner_only)
    try:
        async with connect_to_run(ServerAddress(url=server.url, token=server.token, run=run, pid=0), folder, monitors=monitors) as bus:
            yield bus
    finally:
        await server.stop()
