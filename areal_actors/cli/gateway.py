"""The command `gateway`."""

from __future__ import annotations

from areal_actors.cli.command import Options
from areal_actors.run.lone_gateway import LoneGatewayOptions, serve_gateway


def serve(options: Options) -> int:
    """Record the calls of clients at an inference server."""
    return serve_gateway(
        LoneGatewayOptions(**{field: getattr(options, field) for field in LoneGatewayOptions.__struct_fields__})
    )
