"""The command `run`."""

from __future__ import annotations

from areal_actors.cli.check_static import measure_machine, resolve, stages_of
from areal_actors.cli.command import Options
from areal_actors.run import start
from areal_actors.stages.run_stages import run_stages


def run(options: Options) -> int:
    """Train with a recipe, or with the recipes of a file of stages."""
    if stages := stages_of(options):
        return run_stages(*stages)
    resolved = resolve(options, measure=measure_machine)
    return start.run(resolved.recipe, profile=resolved.profile, reason=resolved.reason)
