"""Sessions that were erased after their rows were written: no run starts or goes on with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from areal_actors.core.command import COMMAND
from areal_actors.core.errors import SetupError
from areal_actors.reader.feedback import read_ledger
from areal_actors.reader.run import open_run
from areal_actors.recipe.recipe import Recipe


class _Source(msgspec.Struct, frozen=True):
    """The columns of a row that say where it is from."""

    log: str
    session: str


def sessions_of_rows(path: Path) -> dict[str, set[str]]:
    """Returns the sessions of a file of rows by the folder of their log."""
    sessions: dict[str, set[str]] = {}
    with path.open("rb") as file:
        for line in file:
            source = msgspec.json.decode(line, type=_Source)
            sessions.setdefault(source.log, set()).add(source.session)
    return sessions


def erased_sessions(path: Path) -> Iterator[str]:
    """Yields the sessions of a file of rows that were erased on request, or whose consent is missing.

    A log that no longer exists erases nothing: its sessions cannot be asked for.
    """
    for log, sessions in sessions_of_rows(path).items():
        folder = Path(log)
        if not folder.is_dir():
            continue
        ledger, _ = read_ledger(open_run(log, folder=folder.parent).history)
        for name in sorted(sessions):
            session = ledger.sessions.get(name)
            if session is not None and not session.is_usable():
                yield name


def refuse_erased(recipe: Recipe) -> None:
    """Refuse a recipe that learns from recorded sessions if one of them was erased since.

    Raises:
        SetupError: there are some; the message has their number and the remedy.
    """
    if erased := list(erased_sessions(Path(recipe.task.dataset).expanduser())):
        raise SetupError(
            f"task.dataset: {len(erased)} of its sessions were erased on request since it was written"
            f" ({', '.join(erased[:3])}{', ...' if len(erased) > 3 else ''}); write it again without them:"
            f" `{COMMAND} learn RUN`"
        )
