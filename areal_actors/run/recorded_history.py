"""Brings the history of a run up to date: from the last event that its database has to the end of the log."""

from __future__ import annotations

from pathlib import Path

from areal_actors.history.database import History, open_database
from areal_actors.run.monitor import open_log
from areal_actors.run.run_folder import RunFolder
from bus.base import Bus
from bus.errors import BusError
from bus.recorded import read_log


async def read_history(place: RunFolder) -> History:
    """Returns the history of a live or finished run, as its log is now.

    The log of a run that is over is not opened if its files are as they were when it was read.

    Raises:
        SetupError: the folder has no log, or another command holds the database.
        BusError: the log cannot be opened. Of a damaged log the events before the damage are read, and `notice` names it.
    """
    with open_database(place.path) as history:
        live = bool(place.live_supervisor())
        if not live and (files := log_files(place)) and files == history.progress.log_files:
            return history
        async with open_log(place) as bus:
            if history.progress.last and not await _is_of_this_log(history, bus):
                history.clear()
            try:
                async for envelope in bus.log(after=history.progress.last):
                    history.receive(envelope)
            except BusError as error:
                history.notice = f"only the first {history.progress.last:,} events are read: {error}"
                history.commit()
                return history
        history.commit("" if live else log_files(place))
        return history


async def _is_of_this_log(history: History, bus: Bus) -> bool:
    """Returns False if the log lacks the last event that the history has: it is another log, was shortened, or trimmed further."""
    last, span = history.progress.last, await bus.span()
    if span.last < last:
        return False
    if span.first > last:  # trimmed since
        return span.first == last + 1
    (envelope,) = await bus.read([last])
    return envelope.id == history.progress.last_id


def log_files(place: RunFolder) -> str:
    """Returns sizes and times of the files of a log, which change with it; empty if there are none."""
    files = sorted(place.nats.glob("**/*_LOG/msgs/*.blk"))
    return " ".join(f"{file.stem}:{status.st_size}:{status.st_mtime_ns}" for file in files if (status := file.stat()))


def history_of_file(path: Path) -> History:
    """Returns the history of an exported log, in memory.

    Raises:
        RecordingDamaged: the file is no log. Of a damaged one the events before the damage are read, and `notice` names it.
    """
    history = History.in_memory()
    try:
        for envelope in read_log(path):
            history.receive(envelope)
    except BusError as error:
        if not history.progress.last:
            raise
        history.notice = f"only the first {history.progress.last:,} events are read: {error}"
    history.commit()
    return history
