"""The history of a run as an SQLite database: `history.sqlite` beside the run, or in memory.

The log is the truth; the file is a copy of its facts, which may be deleted at any time. Each process that opens it
checks it, and adds the events that the log has beyond it. A file that is damaged, half written, or of another version
is built again.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, Self

from areal_actors.core.errors import SetupError
from areal_actors.history.fold import HistoryFold
from areal_actors.history.run_rows import SCHEMA_VERSION, AnswerRecord, ProgressRecord
from areal_actors.history.schema import TABLES, definitions, insertion
from areal_bus.base import Envelope
from areal_bus.store_key import is_encrypted

DATABASE = "history.sqlite"
LOCK = "history.lock"
"""Held by a process that checks or writes the database."""
LOCK_SECONDS = 60.0
"""Longest wait for another command that writes the database."""
POLL_SECONDS = 0.02
EVENTS_AT_ONCE = 20_000
"""Events whose rows are kept in memory before they are written."""
PAGES_AT_ONCE = 4096
"""Pages of a database that are copied before another thread may query it."""
SUFFIXES = ("", "-wal", "-shm")
HEADER = 100
"""Bytes of the header of a database file, of which these change with every write: counter of changes, seal, version of
SQLite."""
CHANGING = (slice(24, 28), slice(68, 72), slice(92, 100))
SEAL = slice(68, 72)
"""The header's application id: a checksum of the rest of the file, 0 while it is written."""

logger = logging.getLogger(__name__)


class History:
    """Rows of a run's log as far as it was read; `areal_actors.history.schema` describes the tables."""

    def __init__(
        self, connection: sqlite3.Connection, progress: ProgressRecord | None = None, *, path: Path | None = None
    ) -> None:
        self.connection = connection
        self.path = path
        """File of the database; None in memory."""
        self.notice = ""
        """Sentence about what could not be read of the log; empty if all was."""
        self.rebuilt = ""
        """Sentence about a database in whose place this one is built, in memory; empty if there is none."""
        self._fold: HistoryFold | None = None
        self._progress = progress or ProgressRecord()
        self._is_new = progress is None
        self._unwritten = 0

    @classmethod
    def in_memory(cls) -> Self:
        """Returns an empty history."""
        return cls.create(sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False))

    @classmethod
    def create(cls, connection: sqlite3.Connection, path: Path | None = None) -> Self:
        """Returns the history of an empty database, whose tables are created."""
        connection.execute("BEGIN IMMEDIATE")
        for statement in definitions():
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
        return cls(connection, path=path)

    @property
    def progress(self) -> ProgressRecord:
        """Run, positions and times of the events that were read."""
        return self._fold.progress if self._fold else self._progress

    def query(self, statement: str, *values: object) -> list[Any]:
        """Returns the rows of a query, each a tuple, or the values of a query with one column."""
        rows = self.connection.execute(statement, values).fetchall()
        return [row[0] for row in rows] if rows and len(rows[0]) == 1 else rows

    def records(self, statement: str, *values: object) -> list[dict[str, Any]]:
        """Returns the rows of a query by column."""
        cursor = self.connection.execute(statement, values)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def value(self, statement: str, *values: object) -> Any:
        """Returns the first column of the first row of a query; None without a row."""
        row = self.connection.execute(statement, values).fetchone()
        return None if row is None else row[0]

    def receive(self, envelope: Envelope) -> None:
        """Fold the next event of the log.

        Raises:
            CorruptMessage: the envelope is damaged.
        """
        if self._fold is None:
            self._begin()
            self._fold = HistoryFold(self.connection, None if self._is_new else self._progress)
        self._fold.receive(envelope)
        self._unwritten += 1
        if self._unwritten >= EVENTS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write the rows of the events received, for queries of this history alone: `commit` is still to be called."""
        if self._fold is not None and self._unwritten:
            self._fold.write()
            self._unwritten = 0

    def commit(self, log_files: str = "") -> None:
        """Write the rows of the events received; `log_files` identifies the files of a log that does not grow."""
        if self._fold is None and log_files == self._progress.log_files:
            return
        if self._fold is None:
            self._begin()
        self.progress.log_files = log_files
        if self._fold is not None:
            self._fold.write()
            self._unwritten = 0
        else:
            self.connection.execute(
                insertion(ProgressRecord),
                tuple(getattr(self._progress, name) for name in ProgressRecord.__struct_fields__),
            )
        self.connection.execute("COMMIT")
        self._progress, self._fold, self._is_new = self.progress, None, False
        self.seal()

    def answer(self, name: str) -> bytes | None:
        """Returns what a command computed from the log as it is; None if it is to be computed."""
        found: bytes | None = self.value(
            "SELECT value FROM answer WHERE name = ? AND last = ?", name, self.progress.last
        )
        return found

    def keep_answer(self, name: str, value: bytes) -> None:
        """Keep what a command computed from the log as it is.

        Call it after the block of `open_database`, which holds the lock.
        """
        with (_lock_of(self.path.parent) if self.path else None) or nullcontext():
            self._begin()
            self.connection.execute(insertion(AnswerRecord), (name, self.progress.last, value))
            self.connection.execute("COMMIT")
            self.seal()

    def clear(self) -> None:
        """Remove all rows, which are of another log."""
        self._begin()
        for table in TABLES:
            self.connection.execute(f"DELETE FROM {table.table}")  # noqa: S608 - a table of the schema
        self.connection.execute("COMMIT")
        self._progress, self._fold, self._is_new = ProgressRecord(), None, True

    def close(self) -> None:
        """Close the database."""
        self.connection.close()

    def _begin(self) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.execute("PRAGMA application_id = 0")

    def seal(self) -> None:
        """Write the checksum of the file into its header, unless another process is reading it."""
        if self.path is None:
            return
        self.connection.execute("PRAGMA busy_timeout = 0")
        busy, *_ = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if not busy:
            self.connection.execute(f"PRAGMA application_id = {checksum(self.path.read_bytes())}")
            self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.connection.execute(f"PRAGMA busy_timeout = {int(LOCK_SECONDS * 1000)}")


def checksum(content: bytes) -> int:
    """Returns the checksum of a database file without what changes in its header, a positive number of 31 bits."""
    header = bytearray(content[:HEADER])
    for part in CHANGING:
        header[part] = bytes(part.stop - part.start)
    return zlib.crc32(memoryview(content)[HEADER:], zlib.crc32(header)) >> 1 or 1


@contextmanager
def open_database(folder: Path) -> Iterator[History]:
    """Open the database of a run's folder, to bring it up to date within the block, while no other process does.

    It stays open.
    A missing database is created. Where it cannot be written or locked it is copied into memory, and that of an
    encrypted log is made there.

    Raises:
        SetupError: another process holds the database for too long, or it cannot be written for lack of space.
    """
    path = folder / DATABASE
    is_plain = not is_encrypted(folder / "nats")  # of an encrypted log no rows with texts are stored
    lock = _lock_of(folder) if is_plain and os.access(folder, os.W_OK) else None
    if lock is None:
        yield copy_into_memory(path)
        return
    with lock:
        try:
            yield _open_stored(path) or _created(path)
        except sqlite3.OperationalError as error:
            raise SetupError(f"{path} cannot be written: {error}; free space, or delete it") from error


def _open_stored(path: Path) -> History | None:
    """Returns the database of a file; None if there is none that can be used."""
    if not path.exists():
        return None
    try:
        problem = _problem(path)
        if not problem:
            connection = _connect(path)
            return History(connection, _read_progress(connection), path=path)
    except sqlite3.DatabaseError as error:
        problem = str(error)
    logger.warning("%s is built again from the log: %s", path, problem)
    return None


def _problem(path: Path) -> str:
    """Returns why a database file cannot be used; empty if it can."""
    content = path.read_bytes()
    if problem := _header_problem(content):
        return problem
    log = path.with_name(path.name + "-wal")
    seal = int.from_bytes(content[SEAL], "big")
    if seal and not (log.exists() and log.stat().st_size):
        return "" if seal == checksum(content) else "its checksum does not match"
    connection = _connect(path)
    try:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    finally:
        connection.close()
    return "" if found == "ok" else str(found)


def _header_problem(content: bytes) -> str:
    version = int.from_bytes(content[60:64], "big")
    if len(content) < HEADER or not version:
        return "it is not complete"
    return "" if version == SCHEMA_VERSION else f"it has version {version}, expected {SCHEMA_VERSION}"


def _read_progress(connection: sqlite3.Connection) -> ProgressRecord | None:
    row = connection.execute("SELECT * FROM progress").fetchone()
    return None if row is None else ProgressRecord(**dict(zip(ProgressRecord.__struct_fields__, row, strict=True)))


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def _created(path: Path) -> History:
    for suffix in SUFFIXES:
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return History.create(_connect(path), path)


def copy_into_memory(path: Path) -> History:
    """Returns a copy of a database in memory; an empty one if it cannot be used."""
    history = History.in_memory()
    if not path.exists():
        return history
    try:
        content = path.read_bytes()
        seal, problem = int.from_bytes(content[SEAL], "big"), _header_problem(content)
        if not problem and seal == checksum(content):
            source = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
            source.backup(history.connection)
            source.close()
            return History(history.connection, _read_progress(history.connection))
        problem = problem or (
            "its checksum does not match" if seal else "it is being written, or its writer was killed"
        )
    except (OSError, sqlite3.DatabaseError) as error:
        problem = str(error)
    history.rebuilt = f"{path} is not used, and the log is read from its beginning: {problem}"
    logger.warning("%s", history.rebuilt)
    return history


def remove_database(folder: Path) -> None:
    """Remove the database of a run's folder, which the next command builds again from what its log has.

    Raises:
        SetupError: another process holds the database for too long.
    """
    with _lock_of(folder) or nullcontext():
        for suffix in SUFFIXES:
            (folder / f"{DATABASE}{suffix}").unlink(missing_ok=True)


def store_copy(history: History, folder: Path) -> None:
    """Store a committed history as the database of a run's folder, unless that has as many events.

    Where it cannot be written, nothing is stored.

    Raises:
        SetupError: another process holds the database for too long, or it cannot be written for lack of space.
    """
    path = folder / DATABASE
    with open_database(folder) as stored:
        if stored.path is None or stored.progress.last >= history.progress.last:
            return
        stored.close()
        for suffix in SUFFIXES:
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        target = sqlite3.connect(path, isolation_level=None)
        history.connection.backup(target, pages=PAGES_AT_ONCE, sleep=0)
        target.execute("PRAGMA application_id = 0")
        target.close()
        copy = History(_connect(path), history.progress, path=path)
        copy.seal()
        copy.close()


def _lock_of(folder: Path) -> IO[bytes] | None:
    """Returns a file with the lock of a folder's database, which ends with it; None where files cannot be locked.

    Raises:
        SetupError: another process still holds it after `LOCK_SECONDS`.
    """
    end = time.monotonic() + LOCK_SECONDS
    path = folder / LOCK
    try:
        file = path.open("ab")
    except OSError:
        return None
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                file.close()
                held = f"{path} has been held by another command for {LOCK_SECONDS:.0f} s, which writes {DATABASE}"
                raise SetupError(f"{held}: wait until it ends, or end it") from None
            time.sleep(POLL_SECONDS)
        except OSError:
            file.close()
            return None
        else:
            return file
