"""Events of a run that concern the run as a whole, made again from the rows of its history."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, TypeVar

import msgspec

from areal_actors.history.database import History
from areal_actors.history.run_rows import LOAD_COLUMNS
from areal_actors.messages import (
    KINDS,
    ActorStarted,
    ActorStopped,
    CheckpointCommitted,
    EvaluationCompleted,
    LoadMeasured,
    LossEvaluated,
    StepCompleted,
    WeightsLoaded,
    WeightsPublished,
)
from areal_bus.message import Event, Message

E = TypeVar("E", bound=Event)
RunEvent = tuple[int, float, Message]
"""Position in the log, time, event."""

_KINDS = {kind.subject: kind for kind in KINDS if issubclass(kind, Event)}
_ACTORS: dict[str, type[Event]] = {"started": ActorStarted, "stopped": ActorStopped}


def run_events(history: History, *, after: int = 0) -> Iterator[RunEvent]:
    """Yields the events of a log in order, without those of groups, episodes, calls and batches.

    Answers of evaluations are left out, too. Those up to the position `after` are left out.
    """
    sources = (
        source(history, after)
        for source in (_notices, _steps, _weights, _evaluations, _checkpoints, _actors, load_events)
    )
    return heapq.merge(*sources, key=itemgetter(0))


def notice_events(history: History, kind: type[E], *, after: int = 0) -> Iterator[tuple[int, float, E]]:
    """Yields the events of a kind that is kept whole, in order."""
    statement = "SELECT position, at, fields FROM notice WHERE kind = ? AND position > ? ORDER BY position"
    for position, at, fields in history.query(statement, kind.subject, after):
        yield position, at, _event(kind, msgspec.json.decode(fields))


def load_events(history: History, after: int = 0) -> Iterator[tuple[int, float, LoadMeasured]]:
    """Yields the measured loads of the run."""
    for row in history.records("SELECT * FROM load_sample WHERE measured > ? ORDER BY measured", after):
        columns = {name: msgspec.json.decode(row[name]) for name in LOAD_COLUMNS}
        fields = row | columns | {"engine_full": bool(row["engine_full"])}
        yield row["measured"], row["measured_at"], _event(LoadMeasured, fields)


def _event(kind: type[E], fields: dict[str, Any]) -> E:
    """Returns an event from its fields; JSON has neither NaN nor infinity, which are null: both are read as NaN."""
    numbers = {field.name for field in msgspec.structs.fields(kind) if field.type is float}
    whole = {name: math.nan if value is None and name in numbers else value for name, value in fields.items()}
    event: E = msgspec.convert(whole, kind, str_keys=True)
    return event


def _notices(history: History, after: int) -> Iterator[RunEvent]:
    statement = "SELECT position, at, kind, fields FROM notice WHERE position > ? ORDER BY position"
    for position, at, kind, fields in history.query(statement, after):
        if kind in _KINDS:
            yield position, at, _event(_KINDS[kind], msgspec.json.decode(fields))


def _steps(history: History, after: int) -> Iterator[RunEvent]:
    metrics: dict[int, dict[str, float]] = {}
    for completed, name, value in history.query("SELECT completed, name, value FROM metric WHERE completed > ?", after):
        metrics.setdefault(completed, {})[name] = math.nan if value is None else value
    for row in history.records("SELECT * FROM step WHERE completed > ? ORDER BY completed", after):
        step = StepCompleted(
            step=row["step"],
            metrics=metrics.get(row["completed"], {}),
            sequences_checksum=row["sequences_checksum"],
            weights_checksum=row["weights_checksum"],
        )
        yield row["completed"], row["completed_at"], step


def _weights(history: History, after: int) -> Iterator[RunEvent]:
    published = [
        (row["published"], row["published_at"], _event(WeightsPublished, {"location": row} | row))
        for row in history.records("SELECT * FROM version WHERE published > ? ORDER BY published", after)
    ]
    loaded = [
        (row["loaded"], row["loaded_at"], _event(WeightsLoaded, row))
        for row in history.records("SELECT * FROM load WHERE loaded > ? ORDER BY loaded", after)
    ]
    return iter(sorted([*published, *loaded], key=itemgetter(0)))


def _evaluations(history: History, after: int) -> Iterator[RunEvent]:
    for row in history.records("SELECT * FROM evaluation WHERE completed > ? ORDER BY completed", after):
        numbers = {
            name: math.nan if value is None else value for name, value in msgspec.json.decode(row["metrics"]).items()
        }
        event: Message
        if row["mode"] == "examples":
            event = _event(
                LossEvaluated, {"weight_version": row["weight_version"], "examples": row["tasks"], "metrics": numbers}
            )
        else:
            event = _event(
                EvaluationCompleted,
                row | {"reward_metrics": numbers, "sampled_by": msgspec.json.decode(row["sampled_by"])},
            )
        yield row["completed"], row["completed_at"], event


def _checkpoints(history: History, after: int) -> Iterator[RunEvent]:
    for row in history.records("SELECT * FROM checkpoint WHERE committed > ? ORDER BY committed", after):
        yield (
            row["committed"],
            row["committed_at"],
            _event(CheckpointCommitted, row | {"kept": msgspec.json.decode(row["kept"])}),
        )


def _actors(history: History, after: int) -> Iterator[RunEvent]:
    for row in history.records(
        "SELECT * FROM actor WHERE changed > ? AND change <> 'failed' ORDER BY changed", after
    ):  # failures are notices
        yield row["changed"], row["changed_at"], _event(_ACTORS[row["change"]], row)
