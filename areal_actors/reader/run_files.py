"""State of a run from its folder's files alone, without its log: fast enough for a list of hundreds of runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.core.durable_files import read_lines
from areal_actors.core.errors import SetupError
from areal_actors.display.recorded_state import recorded_state
from areal_actors.display.run_state import RunState
from areal_actors.display.sentences import count_of
from areal_actors.folder.run_folder import RunFolder, find_run
from areal_actors.messages import KINDS, RunForked
from areal_actors.reader.recorded_history import history_of_file
from areal_bus.message import Event, Message

_KINDS = {kind.subject: kind for kind in KINDS if issubclass(kind, Event)}


class RunFiles(msgspec.Struct, frozen=True):
    """A run as its files show it."""

    name: str
    folder: RunFolder | None
    """None for an exported log."""
    recipe: dict[str, Any]
    """The resolved recipe."""
    state: RunState
    complaint: str = ""
    """Sentence about damaged lines; empty if there are none."""
    parent: str = ""
    """Run at whose checkpoint it began, if it is a fork."""

    def status(self) -> str:
        """Returns `live`, `finished`, `ended early`, `interrupted` for a run that was killed, `served` for a model."""
        if self.folder is not None and self.folder.live_supervisor():
            return "live"
        if self.is_served():
            return "served"
        if self.state.finished is None:
            return "interrupted"
        return "ended early" if self.state.finished.error else "finished"

    def is_served(self) -> bool:
        """Returns True for a served model, which trains nothing."""
        return bool(self.recipe.get("actors", {}).get("trainer", {}).get("count", 1) == 0)


def read_run_files(place: RunFolder) -> RunFiles:
    """Returns the state of a run from its `recipe.json` and `metrics.jsonl`.

    Raises:
        SetupError: its recipe cannot be read.
    """
    try:
        recipe = msgspec.json.decode((place.path / "recipe.json").read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        raise SetupError(f"{place.path / 'recipe.json'} cannot be read: {error}") from error
    lines, state, unknown, parent = read_lines(place.metrics), RunState(run=place.path.name), 0, ""
    for row in lines.rows:
        try:
            message = message_of(row)
        except msgspec.ValidationError:
            unknown += 1
        else:
            if isinstance(message, RunForked):
                parent = message.parent
            if message is not None:
                state.fold(message, float(row.get("time", 0.0)))
    complaints = [
        lines.complaint(place.metrics),
        f"{count_of(unknown, 'line')} of another version ignored" * bool(unknown),
    ]
    return RunFiles(
        name=place.path.name,
        folder=place,
        recipe=recipe,
        state=state,
        complaint="; ".join(filter(None, complaints)),
        parent=parent,
    )


def message_of(row: dict[str, Any]) -> Message | None:
    """Returns the event of a line of `metrics.jsonl`; None if its kind is unknown.

    Raises:
        msgspec.ValidationError: it was written by another version.
    """
    kind = _KINDS.get(row.get("kind", ""))
    return None if kind is None else msgspec.convert(_with_nan(row), kind, str_keys=True)


def _with_nan(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a line whose metrics are numbers: JSON has no NaN, so that one is null in the file."""
    metrics = row.get("metrics")
    if not isinstance(metrics, dict):
        return row
    return row | {"metrics": {name: math.nan if value is None else value for name, value in metrics.items()}}


def find_run_files(run: str, folder: Path) -> RunFiles:
    """Returns the state of a run by its name in `folder`, its path, or the path of its exported log.

    An empty name is the latest run.

    Raises:
        SetupError: there is none.
    """
    path = Path(run)
    if path.is_file():
        history = history_of_file(path)
        state = recorded_state(history)
        recipe = state.started.recipe if state.started else {}
        return RunFiles(name=path.name, folder=None, recipe=recipe, state=state, complaint=history.notice)
    return read_run_files(run_folder(run, folder))


def run_folder(run: str, folder: Path) -> RunFolder:
    """Returns the folder of a run by its name in `folder` (empty: the latest) or its path.

    Raises:
        SetupError: there is none.
    """
    run_path, hint = find_run(run, folder)
    if run_path is None:
        name = f"'{run}'" if run else "yet"
        raise SetupError(
            f"{folder.absolute()} has no run {name}, and no run's folder or log file has that path; {hint}; see"
            " --folder"
        )
    return run_path
