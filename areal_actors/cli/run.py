"""The command `run`."""

from __future__ import annotations

from areal_actors.cli.arguments import Options
from areal_actors.cli.check_static import resolve
from areal_actors.run import start


def run(options: Options) -> int:
    """Train with a recipe."""
    resolved = resolve(options, measures=True)
    return start.run(resolved.recipe, profile=resolved.profile, reason=resolved.reason)
