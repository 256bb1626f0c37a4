"""`areal-actors runs`: every run of a folder in one line."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from areal_actors.core.command import COMMAND
from areal_actors.core.errors import SetupError
from areal_actors.core.foreign_text import escape_controls
from areal_actors.display.safe_console import SafeConsole
from areal_actors.display.sentences import duration, held_out_scores
from areal_actors.folder.run_folder import RunFolder
from areal_actors.reader.run_files import RunFiles, read_run_files

PIPE_COLUMNS = 160
PADDING = 2
STYLES = {"live": "bold green", "finished": "", "ended early": "red", "interrupted": "yellow", "served": ""}


def list_runs(folder: Path, *, as_json: bool = False, console: Console | None = None) -> int:
    """Print the runs of a folder, the latest last; returns the exit status.

    Raises:
        SetupError: the folder does not exist.
    """
    if not folder.is_dir():
        raise SetupError(
            f"no run yet: {folder.absolute()} does not exist; start one with `{COMMAND} run RECIPE`, or name another"
            " folder: --folder PATH"
        )
    rows = [facts(run) for run in sorted(_runs(folder), key=lambda run: run.state.started_at)]
    screen = console or output()
    if as_json:
        screen.print(escape_controls(json.dumps(rows, indent=1)), markup=False, highlight=False, soft_wrap=True)
    elif not rows:
        screen.print(
            f"no run in {folder.absolute()}; start one with `{COMMAND} run RECIPE`",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    else:
        screen.print(_table(rows, screen.width))
    return 0


def output() -> Console:
    """Returns a console on standard output; wide where that is a file or a pipe, so that tables keep their columns."""
    console = SafeConsole()
    return console if console.is_terminal else SafeConsole(width=PIPE_COLUMNS)


def _runs(folder: Path) -> Iterator[RunFiles]:
    for recipe in folder.absolute().glob("*/recipe.json"):
        yield read_run_files(RunFolder(recipe.parent))


def facts(run: RunFiles) -> dict[str, Any]:
    """Returns what the list shows of a run; a missing number is None."""
    state, recipe = run.state, run.recipe
    rewards = state.history("reward_mean")
    evaluations = state.accuracy("sampled") or state.accuracy("greedy")
    held_out = held_out_scores(evaluations)[1] or state.held_out_values("loss")
    return {
        "run": run.name,
        "status": run.status(),
        "fork_of": run.parent,
        "started": state.started_at or None,
        "seconds": state.now - state.started_at if state.started_at else None,
        "steps": state.steps[-1].number if state.steps else 0,
        "of_steps": 0 if run.is_served() else recipe.get("steps", 0),
        "algorithm": recipe.get("algorithm", {}).get("name", ""),
        "model": recipe.get("model", ""),
        "data": recipe.get("task", {}).get("environment") or recipe.get("task", {}).get("dataset", ""),
        "reward": [rewards[0], rewards[-1]] if rewards else None,
        "loss": state.metric("loss"),
        "held_out": [held_out[0], *held_out[1:][-1:]] if held_out else None,
        "held_out_metric": "accuracy" if evaluations else "loss",
        "error": state.finished.error if state.finished else "",
    }


def _table(runs: list[dict[str, Any]], width: int) -> Table:
    """The columns from the left that fit into the width."""
    rows = [_cells(run) for run in runs]
    if not any(row["fork of"] for row in rows):
        rows = [{name: cell for name, cell in row.items() if name != "fork of"} for row in rows]
    table, used = Table(box=None, padding=(0, 2, 0, 0), header_style="dim"), 0
    names: list[str] = []
    for name in rows[0]:
        used += max(len(name), *(len(row[name]) for row in rows)) + PADDING
        if used - PADDING <= width or not names:
            names.append(name)
            table.add_column(name, justify="right" if name in ("took", "steps") else "left", overflow="fold")
        else:
            break
    for run, row in zip(runs, rows, strict=True):
        table.add_row(*(Text(row[name]) for name in names), style=STYLES[run["status"]])
    return table


def _cells(run: dict[str, Any]) -> dict[str, str]:
    return {
        "run": run["run"],
        "status": run["status"],
        "fork of": run["fork_of"],
        "steps": f"{run['steps']}/{run['of_steps']}" if run["of_steps"] else "",
        "reward": _course(run["reward"]),
        "held out": (
            _course(run["held_out"]) + (" loss" if run["held_out"] and run["held_out_metric"] == "loss" else "")
        ),
        "started": time.strftime("%m-%d %H:%M", time.localtime(run["started"])) if run["started"] else "",
        "took": duration(run["seconds"]) if run["seconds"] is not None else "",
        "algorithm": run["algorithm"],
        "model": run["model"],
        "data": run["data"],
    }


def _course(values: list[float] | None) -> str:
    return " → ".join(f"{value:.3f}" for value in values or ())
