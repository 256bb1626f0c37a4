"""The command that looks at a moment of a run: state."""

from __future__ import annotations

from pathlib import Path

from areal_actors.cli.arguments import Options
from areal_actors.replay import state as moments


def state(options: Options) -> int:
    """Print the state of a run at a moment."""
    return moments.state(options.run, folder=Path(options.folder), at=options.at, as_json=options.json)
