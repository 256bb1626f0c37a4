"""The command `serve`."""

from __future__ import annotations

from areal_actors.cli.check_static import measure_machine, resolve
from areal_actors.cli.command import Options
from areal_actors.run import serve as serving


def serve(options: Options) -> int:
    """Serve a recipe's model."""
    resolved = resolve(options, serving=True, measure=measure_machine)
    return serving.serve(resolved.recipe, profile=resolved.profile, reason=resolved.reason)
