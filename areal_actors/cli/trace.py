"""The command `trace`."""

from __future__ import annotations

from pathlib import Path

from areal_actors.cli.arguments import Options
from areal_actors.replay import trace as traces


def trace(options: Options) -> int:
    """Print an episode token by token."""
    place, attempt = Path(options.folder), options.attempt
    return traces.trace(options.run, options.episode, folder=place, attempt=attempt, html=options.html, as_json=options.json)
