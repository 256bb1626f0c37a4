"""The command `what-if`, which loads torch to read a log."""

from __future__ import annotations

from pathlib import Path

from areal_actors.cli.arguments import Options, run_and_settings
from areal_actors.replay import what_if as replays


def what_if(options: Options) -> int:
    """Compare what a run trained with what other settings would have."""
    run, settings = run_and_settings(options.words)
    return replays.what_if(run, settings, folder=Path(options.folder), train=options.train, as_json=options.json)
