"""The command `runs`, which reads files alone."""

from __future__ import annotations

from pathlib import Path

from areal_actors.cli.arguments import Options
from areal_actors.reader import listing


def runs(options: Options) -> int:
    """List runs."""
    return listing.list_runs(Path(options.folder), as_json=options.json)
