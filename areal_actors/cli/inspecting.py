"""The commands that look at a moment of a run: state | why."""

from __future__ import annotations

from pathlib import Path

from areal_actors.cli.arguments import Options
from areal_actors.replay import state as moments
from areal_actors.replay import why as reasons


def state(options: Options) -> int:
    """Print the state of a run at a moment."""
    return moments.state(options.run, folder=Path(options.folder), at=options.at, as_json=options.json)


def why(options: Options) -> int:
    """Print what limits a run."""
    return reasons.why(options.run, folder=Path(options.folder), as_json=options.json)
