"""Schema of a run's history: every table is a struct, whose fields are its columns, with their meanings and units.

Positions are sequences in the run's log, counted from 1, where the event with texts and tokens lies. Times are seconds
since the epoch, by the clock of the event's sender. JSON columns are read with SQLite's `json_extract`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_type_hints

from areal_actors.history.episode_rows import AttemptRecord, BatchMemberRecord, BatchRecord, CallRecord, GroupRecord
from areal_actors.history.row import HistoryRow
from areal_actors.history.run_rows import (
    ActorRecord,
    AnswerRecord,
    EvaluationRecord,
    LaunchRecord,
    LoadRecord,
    LoadSampleRecord,
    MetricRecord,
    NoticeRecord,
    ProgressRecord,
    SavedRecord,
    StepRecord,
    VersionRecord,
)

TABLES: tuple[type[HistoryRow], ...] = (
    *(
        ProgressRecord,
        LaunchRecord,
        GroupRecord,
        AttemptRecord,
        CallRecord,
        BatchRecord,
        BatchMemberRecord,
        StepRecord,
        MetricRecord,
        VersionRecord,
        LoadRecord,
        EvaluationRecord,
        SavedRecord,
    ),
    *(ActorRecord, LoadSampleRecord, NoticeRecord, AnswerRecord),
)
VIEWS = {"episode": "SELECT * FROM attempt WHERE id IN (SELECT max(id) FROM attempt GROUP BY episode)"}
TYPES: dict[Any, str] = {
    int: "INTEGER NOT NULL",
    float: "REAL NOT NULL",
    str: "TEXT NOT NULL",
    bytes: "BLOB NOT NULL",
    int | None: "INTEGER",
    float | None: "REAL",
}


def columns_of(table: type[HistoryRow]) -> dict[str, str]:
    """Returns the columns of a table with their types in SQL."""
    hints = get_type_hints(table)
    return {name: TYPES[hints[name]] for name in table.__struct_fields__}


def definitions() -> Iterator[str]:
    """Yields the statements that create the schema."""
    for table in TABLES:
        columns = ", ".join(f"{name} {kind}" for name, kind in columns_of(table).items())
        composite = "," in table.key
        yield (
            f"CREATE TABLE {table.table} ({columns}, PRIMARY KEY ({table.key})){' WITHOUT ROWID' if composite else ''}"
        )
        for column in table.indexes:
            yield f"CREATE INDEX {table.table}_{column} ON {table.table} ({column})"
    for name, query in VIEWS.items():
        yield f"CREATE VIEW {name} AS {query}"


def insertion(table: type[HistoryRow]) -> str:
    """Returns the statement that writes a row, in place of an earlier one with its key."""
    marks = ", ".join("?" * len(table.__struct_fields__))
    return f"INSERT OR REPLACE INTO {table.table} VALUES ({marks})"  # noqa: S608 - of this module alone
