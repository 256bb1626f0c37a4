"""The commands that start processes: run | resume | serve."""

from __future__ import annotations

from pathlib import Path

from areal_actors.cli.arguments import Options
from areal_actors.cli.checking import resolve
from areal_actors.core.errors import RecipeError
from areal_actors.run import launcher
from areal_actors.run import serve as serving


def run(options: Options) -> int:
    """Train with a recipe."""
    resolved = resolve(options, measures=True)
    return launcher.run(resolved.recipe, profile=resolved.profile, reason=resolved.reason)


def resume(options: Options) -> int:
    """Resume a run."""
    names = [word for word in options.words if "=" not in word]
    if len(names) > 1:
        raise RecipeError(f"found several runs, {' and '.join(names)}; name one run, and overrides as KEY=VALUE")
    overrides = [word for word in options.words if "=" in word] + options.set
    return launcher.resume("".join(names), overrides, folder=Path(options.folder), checkpoint=options.checkpoint)


def serve(options: Options) -> int:
    """Serve a recipe's model."""
    resolved = resolve(options, serving=True, measures=True)
    return serving.serve(resolved.recipe, profile=resolved.profile, reason=resolved.reason)
