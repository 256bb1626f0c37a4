"""The command `tinker`, by itself because it becomes another program at once."""

from __future__ import annotations

from areal_actors.cli.command import Options
from areal_actors.core.extras import TINKER, require_extra
from areal_actors.tinker import command


def serve(options: Options) -> int:
    """Serve the Tinker API."""
    require_extra(TINKER, "tinker")
    return command.serve(
        command.TinkerOptions(**{field: getattr(options, field) for field in command.TinkerOptions.__struct_fields__})
    )
