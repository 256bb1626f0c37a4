"""The files of a run that has ended, and commands that continue from it."""

from __future__ import annotations

import shlex
from pathlib import Path

from areal_actors.core.programs import program
from areal_actors.run.run_folder import DEFAULT_FOLDER, RunFolder

WRITTEN = ("summary.txt", "reward.png", "loss.png", "metrics.jsonl", "episodes.jsonl")
"""Files for people, in the folder of a run."""


def next_commands(folder: RunFolder, runs: str, checkpoint: str, *, has_episodes: bool) -> list[tuple[str, str]]:
    """Returns label and text of the rows at the end of a summary.

    Args:
        folder: the run's.
        runs: the recipe's `folder`.
        checkpoint: name of the best or newest checkpoint; empty if there is none.
        has_episodes: False for a run that learns from examples.
    """
    place, name = Path(runs) / folder.path.name, shlex.quote(folder.path.name)
    areal = program("areal")
    option = "" if runs == DEFAULT_FOLDER else f" --folder {shlex.quote(runs)}"
    written = [file for file in WRITTEN if (folder.path / file).exists()]
    commands = [f"{areal} show {name}{option}"] if has_episodes else []
    others = [path for path in folder.path.parent.glob("*/metrics.jsonl") if path.parent != folder.path]
    if others:
        latest = max(others, key=lambda path: path.stat().st_mtime).parent.name
        commands.append(f"{areal} compare {shlex.quote(latest)} {name}{option}")
    commands.append(f"{areal} track {name}{option} --to tensorboard")
    rows = [("files", f"{place}: {', '.join(written)}"), ("next", "\n".join(commands))]
    if checkpoint:
        rows.append(("weights", f"model={place / checkpoint} for another run, or for `areal serve`"))
    return rows
