"""The command `why`."""

from __future__ import annotations

from pathlib import Path

from areal_actors.cli.arguments import Options
from areal_actors.replay import why as reasons


def why(options: Options) -> int:
    """Print what limits a run."""
    return reasons.why(options.run, folder=Path(options.folder), as_json=options.json)
