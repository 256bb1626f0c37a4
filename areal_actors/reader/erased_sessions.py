"""Sessions that were erased after their rows were written: no run starts, goes on or saves a checkpoint with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.core.command import COMMAND
from areal_actors.core.errors import SetupError
from areal_actors.history.run_events import notice_events
from areal_actors.messages import RunResumed, RunStarted, SessionsErased
from areal_actors.reader.feedback import read_ledger
from areal_actors.reader.run import open_run
from areal_actors.recipe.recipe import Recipe


class _Source(msgspec.Struct, frozen=True):
    """The columns of a row with its origin."""

    log: str
    session: str


class ErasedSessions(msgspec.Struct, frozen=True):
    """The sessions of a run's rows, by what became of them."""

    sessions: int
    """Sessions with rows."""
    logs: int
    before: tuple[str, ...]
    """Erased, or without consent, when the run began or went on."""
    later: tuple[str, ...]
    """Erased since then."""

    def describe(self) -> str:
        """Returns the sentence for people."""
        count = f"{self.sessions} recorded sessions of {self.logs} log{'s' if self.logs != 1 else ''}"
        if not self.later:
            return f"{count}: none of an erased session or one without consent"
        return (
            f"{count}: {len(self.later)} were erased after this run had begun, and are in its batches; learn again for"
            f" a checkpoint without them: `{COMMAND} learn RUN`"
        )


def sessions_of_rows(path: Path) -> dict[str, set[str]]:
    """Returns the sessions of a file of rows by the folder of their log."""
    sessions: dict[str, set[str]] = {}
    with path.open("rb") as file:
        for line in file:
            source = msgspec.json.decode(line, type=_Source)
            sessions.setdefault(source.log, set()).add(source.session)
    return sessions


def erased_sessions(path: Path) -> Iterator[tuple[float, str]]:
    """Yields time and name of the sessions of a file of rows that may not be learned from; 0 for those without consent.

    A log that no longer exists erases nothing: its sessions cannot be asked for.
    """
    for log, sessions in sessions_of_rows(path).items():
        folder = Path(log)
        if not folder.is_dir():
            continue
        history = open_run(log, folder=folder.parent).history
        ledger, _ = read_ledger(history)
        times = {name: time for _, time, event in notice_events(history, SessionsErased) for name in event.sessions}
        for name in sorted(sessions):
            session = ledger.sessions.get(name)
            if session is not None and not session.is_usable():
                yield times.get(name, 0.0), name


def refuse_erased(recipe: Recipe) -> None:
    """Refuse a recipe that learns from recorded sessions if one of them was erased since.

    Raises:
        SetupError: there are some; the message has their number and the remedy.
    """
    if erased := [name for _, name in erased_sessions(Path(recipe.task.dataset).expanduser())]:
        raise SetupError(
            f"task.dataset: {len(erased)} of its sessions were erased on request since it was written"
            f" ({', '.join(erased[:3])}{', ...' if len(erased) > 3 else ''}); write it again without them:"
            f" `{COMMAND} learn RUN`"
        )


def find_erased(run: str, folder: Path, setting: Any) -> ErasedSessions | None:
    """Returns what became of the sessions that a run learned from; None if it learned from none, or its rows are gone.

    Args:
        run: name or folder of the run.
        folder: where runs are written.
        setting: of its recipe, by keys; see `Audit.setting`.
    """
    rows = Path(setting("task", "dataset") or "")
    if setting("algorithm", "name") != "offline" or not rows.is_file():
        return None
    history = open_run(run, folder=folder).history
    began = max(time for kind in (RunStarted, RunResumed) for _, time, _ in notice_events(history, kind))
    erased = list(erased_sessions(rows))
    sessions = sessions_of_rows(rows)
    return ErasedSessions(
        sessions=sum(map(len, sessions.values())),
        logs=len(sessions),
        before=tuple(name for time, name in erased if time < began),
        later=tuple(name for time, name in erased if time >= began),
    )
