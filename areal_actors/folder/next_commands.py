"""The files of a run that has ended, and commands that continue from it."""

from __future__ import annotations

import shlex
from pathlib import Path

from areal_actors.core.command import COMMAND
from areal_actors.core.programs import program, typed_path, user_folder
from areal_actors.core.trackers import TRACKERS, missing_trackers
from areal_actors.folder.run_folder import DEFAULT_FOLDER, RunFolder

WRITTEN = ("summary.txt", "reward.png", "loss.png", "metrics.jsonl", "episodes.jsonl")
"""Files for people, in the folder of a run."""


def run_command(verb: str, name: str, runs: str, *words: str) -> str:
    """Returns a command on a run, to be pasted into a shell in the user's folder.

    Args:
        verb: command of `areal-actors`.
        name: name of the run's folder.
        runs: the recipe's `folder`, which is relative to the current directory.
        words: further words, before the options.
    """
    is_default = (user_folder() / DEFAULT_FOLDER).resolve() == Path(runs).resolve()
    option = [] if is_default else ["--folder", typed_path(Path(runs))]
    return " ".join([program(COMMAND), verb, shlex.quote(name), *map(shlex.quote, words), *option])


def next_commands(folder: RunFolder, runs: str, checkpoint: str, *, has_episodes: bool) -> list[tuple[str, str]]:
    """Returns label and text of the rows at the end of a summary.

    Args:
        folder: the run's.
        runs: the recipe's `folder`.
        checkpoint: name of the best or newest checkpoint; empty if there is none.
        has_episodes: False for a run that learns from examples.

    A tracker is named if it is installed.
    """
    place, name = Path(runs) / folder.path.name, folder.path.name
    written = [file for file in WRITTEN if (folder.path / file).exists()]
    commands = [run_command("show", name, runs)] if has_episodes else []
    commands.append(run_command("view", name, runs))
    other_runs = [path for path in folder.path.parent.glob("*/metrics.jsonl") if path.parent != folder.path]
    if other_runs:
        latest = max(other_runs, key=lambda path: path.stat().st_mtime).parent.name
        commands.append(run_command("compare", latest, runs, name))
    here = [tracker for tracker in TRACKERS if not missing_trackers((tracker,), "")]
    if here:
        commands.append(run_command("export", name, runs, "--to", here[0]))
    rows = [("files", f"{typed_path(place)}: {', '.join(written)}"), ("next", "\n".join(commands))]
    if checkpoint:
        rows.append(
            ("weights", f"model={typed_path(place / checkpoint)} for another run, or for `{program(COMMAND)} serve`")
        )
    return rows
