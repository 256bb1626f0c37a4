"""The command `run`."""

from __future__ import annotations

from areal_actors.cli.arguments import Options
from areal_actors.cli.check_static import files_and_overrides, resolve
from areal_actors.run import start
from areal_actors.stages.run_stages import run_stages
from areal_actors.stages.stage_file import has_stages, read_stages


def run(options: Options) -> int:
    """Train with a recipe, or with the recipes of a file of stages."""
    files, overrides = files_and_overrides(options)
    if has_stages(files[0]):
        return run_stages(read_stages(files[0], overrides), files[0].parent)
    resolved = resolve(options, measures=True)
    return start.run(resolved.recipe, profile=resolved.profile, reason=resolved.reason)
