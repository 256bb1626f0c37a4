"""Connections to the bus of a run that exists: a live one, or the stored log of one that is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from areal_actors.core.command import COMMAND
from areal_actors.core.errors import SetupError
from areal_actors.folder.run_folder import RunFolder, ServerAddress
from areal_actors.recipe.recipe import Recipe
from areal_bus.errors import ServerUnavailable
from areal_bus.nats import NatsBus
from areal_bus.nats_streams import RETRY_SECONDS
from areal_bus.server import EmbeddedServer

CHANGE_SECONDS = 30.0
"""Time limit of a run that starts or ends, until its bus has an address or its supervisor is gone."""
POLL_SECONDS = 0.1


def retry_seconds(recipe: Recipe) -> float:
    """Returns how long messages wait for the bus.

    A cluster may lose its majority for a while, and then elects a leader.
    """
    return max(RETRY_SECONDS, recipe.watchdog.bus_seconds) if recipe.bus.replicas > 1 else RETRY_SECONDS


@asynccontextmanager
async def connect_to_run(
    address: ServerAddress, folder: RunFolder | None, *, monitors: bool = False
) -> AsyncIterator[NatsBus]:
    """Connect to the existing bus of a run, as its supervisor or as a monitor.

    Without a folder, large bodies cannot be read.
    """
    name, blobs = "monitor" if monitors else "supervisor", folder.blobs if folder else None
    bus = await NatsBus.connect(
        address.url, address.run, name=name, token=address.token, blobs=blobs, monitors=monitors
    )
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
        async with connect_to_run(
            ServerAddress(url=server.url, token=server.token, run=run, pid=0), folder, monitors=monitors
        ) as bus:
            yield bus
    finally:
        await server.stop()


@asynccontextmanager
async def open_log(folder: RunFolder) -> AsyncIterator[NatsBus]:
    """Open the bus of a run to read its log: that of the live run, or one on the store of an ended run.

    A run that starts or ends is awaited.

    Raises:
        SetupError: there is no such run here, or its log is on an external server.
        BusError: its log cannot be read.
    """
    async with AsyncExitStack() as stack:
        bus = await _live_bus(stack, folder)
        if bus is None and folder.nats.is_dir() and any(folder.nats.iterdir()):
            bus = await stack.enter_async_context(open_store(folder.nats, folder, folder.recipe().run, monitors=True))
        if bus is None:
            remedy = "name a run that was made here, or export one on a shared server while it is live"
            raise SetupError(f"{folder.path} holds no log; {remedy}")
        yield bus


async def _live_bus(stack: AsyncExitStack, folder: RunFolder) -> NatsBus | None:
    """Returns the bus of a live run; None if it is not live, or has ended meanwhile."""
    give_up = time.monotonic() + CHANGE_SECONDS
    while folder.live_supervisor():
        try:
            return await stack.enter_async_context(connect_to_run(folder.monitor(), folder, monitors=True))
        except ServerUnavailable:
            if time.monotonic() > give_up:
                raise
        except FileNotFoundError as missing:
            if time.monotonic() > give_up:
                late = (
                    f"the bus of {folder.path} has had no address for {CHANGE_SECONDS:.0f} s, though its supervisor is"
                    " alive"
                )
                raise SetupError(f"{late}; see the run's logs in {folder.logs}, or try again") from missing
        await asyncio.sleep(POLL_SECONDS)
    return None


def find_live(run: str, folder: Path) -> RunFolder:
    """Returns the folder of the live run of this name, or of the latest one if the name is empty.

    Raises:
        SetupError: it is not live.
    """
    announced = sorted(folder.glob("*/bus.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    live = [folder_of_run for path in announced if (folder_of_run := RunFolder(path.parent)).live_supervisor()]
    for folder_of_run in live:
        if run in ("", folder_of_run.path.name):
            return folder_of_run
    hint = (
        f"live there: {', '.join(found.path.name for found in live)}"
        if live
        else f"no run is live in {folder.absolute()}"
    )
    if not run:
        raise SetupError(f"{hint}; start one with `{COMMAND} run RECIPE`")
    over = f"; its metrics are in {folder / run / 'metrics.jsonl'}" if (folder / run).is_dir() else ""
    raise SetupError(f"run '{run}' is not live{over}; {hint}")


def address_in(file: Path) -> ServerAddress:
    """Returns the address in a run's `monitor.json`.

    Raises:
        SetupError: it cannot be read.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=ServerAddress)
    except (OSError, msgspec.MsgspecError) as error:
        raise SetupError(f"--bus: {file} cannot be read as a run's monitor.json: {error}") from error
