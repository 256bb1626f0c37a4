"""The connection of a joining host to the bus of its run, which may not have started yet."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from urllib.parse import urlsplit

from areal_actors.core.errors import SetupError
from areal_actors.core.values import Value
from areal_actors.folder.run_folder import ServerAddress
from areal_actors.supervision.nats_server import JOINER
from areal_actors.supervision.run_session import on_interrupt
from areal_bus.errors import ServerUnavailable
from areal_bus.nats import NatsBus
from areal_bus.users import without_credentials

RETRY_SECONDS = 1.0
"""Time between two attempts, and limit of each."""
CONNECT_SECONDS = 10.0


class JoinOptions(Value):
    """Options of `areal-actors join`."""

    address: ServerAddress
    """The run's bus, with the credential for joining."""
    role: str
    count: int = 1
    drain_seconds: float = 30.0
    """Time for episodes in progress after SIGTERM."""
    folder: str = ""
    """Folder for what is pulled, and for logs, which only this user can enter; empty: a temporary one, removed at the
    end."""
    wait_seconds: float = 0.0
    """Time to wait for a run that is not there yet."""
    settings: tuple[str, ...] = ()
    """`KEY=VALUE` of settings that differ on this host."""


async def connect_to_run(options: JoinOptions, seconds: float = CONNECT_SECONDS) -> NatsBus:
    """Returns the connection to the bus of the run, established within these seconds."""
    address, shown = options.address, without_credentials(options.address.url)
    try:
        return await NatsBus.connect(address.url, address.run, name=JOINER, connect_timeout=seconds)
    except ServerUnavailable as error:
        if "refused the credentials" in str(error):
            changed = "take join.json of this run; it changes with every start"
            raise SetupError(f"the bus at {shown} refuses this credential: {changed}") from error
        waited = f" within {options.wait_seconds:g} s" if options.wait_seconds else ""
        if "encrypt" in str(error):
            raise SetupError(str(error)) from error
        raise SetupError(
            f"no bus answers at {shown}{waited}: the address is wrong, or run '{address.run}' has ended"
        ) from error


async def await_listener(options: JoinOptions, stopped: asyncio.Event) -> bool:
    """Wait until something listens at the run's address, the time is over, or a signal to end has set `stopped`.

    Returns True if something listens.
    """
    parts, until = urlsplit(options.address.url), time.monotonic() + options.wait_seconds
    on_interrupt(
        stopped, lambda name: sys.stderr.write(f"{name}: this host no longer waits for run '{options.address.run}'\n")
    )
    sys.stderr.write(
        f"waiting for run '{options.address.run}' at {parts.hostname}:{parts.port} for up to"
        f" {options.wait_seconds:g} s\n"
    )
    while time.monotonic() < until and not stopped.is_set():
        with contextlib.suppress(OSError):  # also TimeoutError, and a name that is not known yet
            async with asyncio.timeout(RETRY_SECONDS):
                _, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.close()
            return True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), RETRY_SECONDS)
    return False
