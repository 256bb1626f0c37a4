"""The command join."""

from __future__ import annotations

import os
import time

from areal_actors.cli.command import Options
from areal_actors.core.gateways import GATEWAY
from areal_actors.core.host_settings import JOIN_TOKEN
from areal_actors.hosts.client import join as serve
from areal_actors.hosts.join_address import join_address
from areal_actors.hosts.run_connection import JoinOptions

POLL_SECONDS = 0.5


def join(options: Options) -> int:
    """Serve workers of a run of another host."""
    token = options.token or os.environ.get(JOIN_TOKEN, "")
    until = time.monotonic() + options.wait
    while options.credential is not None and not options.credential.exists() and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    address = join_address(options.address, token=token, credential=options.credential)
    return serve(
        JoinOptions(
            address=address,
            role=GATEWAY if options.role == "gateway" else options.role,
            count=options.count,
            drain_seconds=options.drain,
            folder=options.folder,
            wait_seconds=options.wait,
            settings=tuple(options.set),
        )
    )
