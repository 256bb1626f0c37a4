"""The command `fork`."""

from __future__ import annotations

from areal_actors.cli.command import Options
from areal_actors.core.errors import RecipeError
from areal_actors.fork import command


def fork(options: Options) -> int:
    """Fork a run at a checkpoint."""
    return command.fork(
        options.run,
        options.at,
        _arms(options),
        folder=options.folder,
        other_code=options.other_code,
        dry_run=options.dry_run,
    )


def _arms(options: Options) -> list[command.Arm]:
    """Returns the forks: one of the settings, or one for each `--arm`, whose settings come after these."""
    if not options.arm:
        if not options.name:
            raise RecipeError("found no name for the fork; write `--name NAME`, or `--arm NAME KEY=VALUE…` for several")
        return [command.Arm(options.name, tuple(options.settings))]
    if options.name:
        raise RecipeError("found --name and --arm; each arm has its name, leave --name out")
    arms = [command.Arm(name, (*options.settings, *settings)) for name, *settings in options.arm]
    if twice := sorted({arm.name for arm in arms if sum(other.name == arm.name for other in arms) > 1}):
        raise RecipeError(f"--arm: found {', '.join(twice)} twice; each arm is a run of its own name")
    for arm in arms:
        if "=" in arm.name:
            raise RecipeError(f"--arm: found {arm.name} in place of a name; write `--arm NAME {arm.name}`")
    return arms
