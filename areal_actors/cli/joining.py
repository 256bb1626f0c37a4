"""The command join."""

from __future__ import annotations

import os

from areal_actors.cli.arguments import TOKEN_VARIABLE, Options
from areal_actors.run.join import JoinOptions, join_address
from areal_actors.run.join import join as serve


def join(options: Options) -> int:
    """Serve workers of a run of another host."""
    token = options.token or os.environ.get(TOKEN_VARIABLE, "")
    address = join_address(options.address, token=token, credential=options.credential)
    return serve(
        JoinOptions(
            address=address,
            role=options.role,
            count=options.count,
            drain_seconds=options.drain,
            folder=options.folder,
            settings=tuple(options.set),
        )
    )
