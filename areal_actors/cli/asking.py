"""The commands that load torch to read a log: what-if | trace."""

from __future__ import annotations

from pathlib import Path

from areal_actors.cli.arguments import Options, run_and_settings
from areal_actors.replay import trace as traces
from areal_actors.replay import what_if as asking


def what_if(options: Options) -> int:
    """Compare what a run trained with what other settings would have."""
    run, settings = run_and_settings(options.words)
    return asking.what_if(run, settings, folder=Path(options.folder), train=options.train, as_json=options.json)


def trace(options: Options) -> int:
    """Print an episode token by token."""
    place, attempt = Path(options.folder), options.attempt
    return traces.trace(options.run, options.episode, folder=place, attempt=attempt, html=options.html, as_json=options.json)
