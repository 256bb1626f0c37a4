"""The command `push`."""

from __future__ import annotations

from pathlib import Path

from areal_actors.cli.arguments import Options
from areal_actors.reader.push import push as upload


def push(options: Options) -> int:
    """Upload a run to the hub."""
    chosen = {name: getattr(options, name) for name in ("checkpoint", "episodes", "private")}
    return upload(options.run, options.repo, folder=Path(options.folder), **chosen)
