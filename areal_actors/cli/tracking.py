"""The command `track`."""

from __future__ import annotations

from pathlib import Path

from areal_actors.cli.arguments import Options
from areal_actors.track import command


def track(options: Options) -> int:
    """Send a run to trackers."""
    chosen = {name: getattr(options, name) for name in ("once", "project", "python")}
    return command.track(options.run, options.to, folder=Path(options.folder), **chosen)
