"""The history of a run, brought up to date: from the last event that its database has to the end of the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from areal_actors.core.command import COMMAND
from areal_actors.core.errors import SetupError
from areal_actors.core.lazy import LazyModule
from areal_actors.folder.run_folder import RunFolder
from areal_actors.history.database import History, open_database
from areal_bus.errors import BusError
from areal_bus.recorded import read_log

log_events: Any = LazyModule("areal_actors.reader.log_events")


def read_history(place: RunFolder) -> History:
    """Returns the history of a live or finished run, as its log is now.

    The log of a run that is over is not opened if its files are as they were when it was read.

    Raises:
        SetupError: the folder has no log, or another command holds the database.
        BusError: the log cannot be opened. Of a damaged log the events before the damage are read, and `notice` names
            it.
    """
    with open_database(place.path) as history:
        is_live = bool(place.live_supervisor())
        if is_live or not (files := log_files(place)) or files != history.progress.log_files:
            log_events.in_thread(log_events.fold_rest(history, place))
            history.commit("" if is_live or history.notice else log_files(place))
        return history


def log_files(place: RunFolder) -> str:
    """Returns sizes and times of the files of a log, which change with it; empty if there are none."""
    files = sorted(place.nats.glob("**/*_LOG/msgs/*.blk"))
    return " ".join(f"{file.stem}:{status.st_size}:{status.st_mtime_ns}" for file in files if (status := file.stat()))


def history_of_file(path: Path) -> History:
    """Returns the history of an exported log, in memory.

    Of a damaged one the events before the damage are read, and `notice` names it.

    Raises:
        SetupError: it is no log.
    """
    history = History.in_memory()
    try:
        for envelope in read_log(path):
            history.receive(envelope)
    except BusError as error:
        if not history.progress.last:
            raise SetupError(
                f"{path} cannot be read as an exported log: {error}; `{COMMAND} export RUN FILE` writes one"
            ) from error
        history.notice = f"only the first {history.progress.last:,} events are read: {error}"
    history.commit()
    return history
