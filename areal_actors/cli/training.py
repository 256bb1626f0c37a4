"""The commands that start processes: run | resume | serve."""

from __future__ import annotations

from areal_actors.cli.arguments import Options
from areal_actors.cli.checking import resolve
from areal_actors.run import launcher
from areal_actors.run import serve as serving


def run(options: Options) -> int:
    """Train with a recipe."""
    resolved = resolve(options, measures=True)
    return launcher.run(resolved.recipe, profile=resolved.profile, reason=resolved.reason)


def resume(options: Options) -> int:
    """Resume a run."""
    overrides = [*options.settings, *options.set]
    return launcher.resume(options.run, overrides, folder=options.folder, checkpoint=options.checkpoint)


def serve(options: Options) -> int:
    """Serve a recipe's model."""
    resolved = resolve(options, serving=True, measures=True)
    return serving.serve(resolved.recipe, profile=resolved.profile, reason=resolved.reason)
