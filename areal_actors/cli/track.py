"""The command `track`."""

from __future__ import annotations

from areal_actors.cli.command import Options
from areal_actors.track import command, otlp


def track(options: Options) -> int:
    """Send a run to trackers, or its traces to a collector."""
    if options.otlp:
        return otlp.send_traces(options.run, options.otlp, folder=options.folder, once=options.once)
    chosen = {name: getattr(options, name) for name in ("once", "project", "python")}
    return command.track(options.run, options.to, folder=options.folder, **chosen)
