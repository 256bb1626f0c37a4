"""Validates `[track]`: its trackers must be known and installed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from areal_actors.core.layers import Key
from areal_actors.core.problems import Problems, nearest, toml_value
from areal_actors.core.run_facts import RunFacts
from areal_actors.core.trackers import install_hint, interpreter, known_trackers, missing_trackers
from areal_actors.recipe.run_settings import TrackSettings


def find_problems(track: TrackSettings, facts: RunFacts) -> Problems:
    """Yields what keeps a tracker from being used, except by `areal-actors serve`, which uses none."""
    if not facts.is_serving:
        yield from track_problems(track)


def track_problems(track: TrackSettings) -> Problems:
    """Yields what keeps a tracker from being used. Nothing is imported, and no tracker is asked."""
    key = ("track", "to")
    unknown = [] if track.python else [name for name in track.to if name not in known_trackers()]
    for name in unknown:
        yield key, f"found {toml_value(name)}; {nearest(name, known_trackers())}"
    if twice := next((name for name in track.to if track.to.count(name) > 1), ""):
        yield key, f"found {toml_value(twice)} {track.to.count(twice)} times; name it once"
    if not track.to or unknown:
        return
    if not os.access(interpreter(track.python), os.X_OK):
        fault = (
            f"found {toml_value(track.python)}, but there is no interpreter (looked beside the recipe and in"
            f" {Path.cwd()})"
        )
        yield ("track", "python"), f"{fault}; create the environment"
        return
    try:
        missing = missing_trackers(track.to, track.python)
    except (OSError, subprocess.SubprocessError) as error:
        yield (
            ("track", "python"),
            f"found {toml_value(track.python)}, which does not run as a Python interpreter ({error}); name another",
        )
        return
    if missing:
        yield key, f"found {toml_value(track.to)}, but {install_hint(missing, track.python)}"


def unused_settings(track: TrackSettings) -> Iterator[Key]:
    """Yields the table of a run without trackers."""
    if not track.to:
        yield ("track",)
