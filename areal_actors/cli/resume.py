"""The command `resume`."""

from __future__ import annotations

from areal_actors.cli.command import Options
from areal_actors.run import start


def resume(options: Options) -> int:
    """Resume a run."""
    overrides = [*options.settings, *options.set]
    return start.resume(options.run, overrides, folder=options.folder, checkpoint=options.checkpoint)
