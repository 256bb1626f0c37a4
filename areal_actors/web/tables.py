"""The page's tables: queries of a run's history, for all rows or for those that changed after an event."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from areal_actors.display.sentences import LINES, plain_line, refused_batch
from areal_actors.history.database import History
from areal_actors.history.run_events import notice_events, run_events
from areal_actors.messages import (
    BatchRefused,
    CompletionRefused,
    EpisodeAbandoned,
    EvaluationCompleted,
    LossEvaluated,
    OffPolicyChanged,
    RunFinished,
    RunResumed,
    RunStarted,
    StepCompleted,
)
from areal_actors.web.rows import (
    ActorRow,
    BatchRow,
    BoundRow,
    CallRow,
    EpisodeRow,
    EvaluationRow,
    NoticeRow,
    Row,
    SampledSpan,
    StepRow,
    VersionRow,
)
from areal_bus.message import Message

SHOWN = {kind.subject for kind in LINES} - {
    kind.subject for kind in (EpisodeAbandoned, StepCompleted, CompletionRefused, EvaluationCompleted, LossEvaluated)
}
"""Kinds whose sentences are notices; the page's tables have the others."""
LONGEST_REASON = 500
TABLES: dict[str, type[Row]] = {
    "episodes": EpisodeRow,
    "steps": StepRow,
    "batches": BatchRow,
    "versions": VersionRow,
    "evaluations": EvaluationRow,
    "actors": ActorRow,
    "bounds": BoundRow,
    "notices": NoticeRow,
}


def _statement(text: str) -> str:
    """Returns an SQL statement; `since(TIME)`: seconds after the first event, `number(KEY)` numbers rows from 0.

    Each process has its own clock: no time is before that of the first event.
    """
    text = re.sub(r"since\((\w+)\)", r"max(0.0, round(\1 - (SELECT began FROM progress), 3))", text)
    return re.sub(r"number\((\w+)\)", r"(row_number() OVER (ORDER BY \1) - 1)", text)


EPISODES = _statement("""
SELECT id - 1 AS id, changed, episode AS name, attempt, group_ AS "group", purpose, task, granted,
    since(granted_at) AS granted_at,
    coalesce(scored, 0) AS scored, coalesce(since(scored_at), 0) AS scored_at,
    coalesce(ended, 0) AS ended, coalesce(since(ended_at), 0) AS ended_at, outcome, reward, completion_tokens AS tokens,
    coalesce(batch, 0) AS batch, coalesce(step, 0) AS step, coalesce(trained, 0) AS trained,
    coalesce(since(trained_at), 0) AS trained_at, coalesce(dropped, 0) AS dropped,
    CASE WHEN dropped IS NOT NULL THEN drop_reason WHEN reason = '' THEN '' ELSE reason || ': ' || detail END AS reason
FROM attempt WHERE {condition} ORDER BY id
""")
CALLS = _statement("""
SELECT attempt_id - 1, recorded, since(at), interaction, spans, oldest_version, completion_tokens
FROM call WHERE attempt_id IN (SELECT id FROM attempt WHERE {condition}) ORDER BY attempt_id, number
""")
STEPS = _statement("""
SELECT number(completed) AS id, changed, step, completed AS position, since(completed_at) AS at,
    coalesce(replaced, 0) AS replaced
FROM step
""")
BATCHES = _statement("""
SELECT number(formed) AS id, changed, step, formed AS position, since(formed_at) AS at, oldest_version,
    dropped_trajectories,
    filtered_groups, refused FROM batch
""")
VERSIONS = _statement("""
SELECT number(changed) AS id, changed, weight_version, changed AS position, since(at) AS at, worker FROM (
    SELECT published AS changed, weight_version, published_at AS at, '' AS worker FROM version
    UNION ALL SELECT loaded, weight_version, loaded_at, worker FROM load)
""")
EVALUATIONS = _statement("""
SELECT number(completed) AS id, completed AS changed, weight_version, completed AS position,
    since(completed_at) AS at, mode,
    metrics, accuracy, reward_mean, mean_tokens, tasks, failed FROM evaluation
""")
ACTORS = _statement("""
SELECT number(changed) AS id, changed, actor, process, change, changed AS position, since(changed_at) AS at,
    CASE WHEN pid IS NULL THEN detail ELSE 'process ' || pid END AS detail FROM actor
""")
METRICS = "SELECT completed, name, value FROM metric WHERE completed IN (SELECT completed FROM step WHERE changed > ?)"
MEMBERS = """
SELECT formed, group_index, coalesce(attempt.id, 0) - 1 FROM batch_member LEFT JOIN attempt USING (ended)
WHERE formed IN (SELECT formed FROM batch WHERE changed > ?) ORDER BY formed, place
"""
HELD_OUT = ("accuracy", "reward_mean", "mean_tokens", "tasks", "failed")


class PageFacts(NamedTuple):
    """Facts of a run besides the rows of its tables, as of the last time that rows were asked for."""

    recipe: dict[str, Any]
    """The resolved recipe; empty if the log has no start."""
    finished: RunFinished | None
    """The end of the run; None while it goes on, and if it was killed."""


class PageTables:
    """Tables of a run as far as its history was read."""

    def __init__(self, history: History) -> None:
        self.history = history
        self._facts = -1, PageFacts({}, None)
        self._notices: list[NoticeRow] = []
        self._bounds: list[BoundRow] = []
        self._noted = 0

    def facts(self) -> PageFacts:
        """Returns recipe and end of the run."""
        history, last = self.history, self.history.value("SELECT last FROM progress")
        if self._facts[0] != last:
            started, recipe = next(
                iter(history.query("SELECT started, recipe FROM run ORDER BY started DESC LIMIT 1")), (0, "{}")
            )
            ends = list(notice_events(history, RunFinished, after=started))
            self._facts = last, PageFacts(msgspec.json.decode(recipe), ends[-1][2] if ends else None)
        return self._facts[1]

    def seconds(self, time: float) -> float:
        """Returns a time in seconds after the first event, as `since` in statements."""
        return max(round(time - self.history.progress.began, 3), 0.0)

    def rows_changed_after(self, position: int) -> dict[str, list[Any]]:
        """Returns the rows of every table that changed after a position; all of them for 0."""
        self.history.flush()
        self._note_events()
        return {
            "episodes": self.episodes("changed > ?", position),
            "steps": self._steps(position),
            "batches": self._batches(position),
            "versions": [VersionRow(**row) for row in self._changed(VERSIONS, position)],
            "evaluations": self._evaluations(position),
            "actors": [ActorRow(**row) for row in self._changed(ACTORS, position)],
            "bounds": [row for row in self._bounds if row.changed > position],
            "notices": [row for row in self._notices if row.changed > position],
        }

    def episodes(self, condition: str, *values: object) -> list[EpisodeRow]:
        """Returns the attempts at episodes with a property, in the order in which they began."""
        self.history.flush()
        rows = [EpisodeRow(**row) for row in self.history.records(EPISODES.format(condition=condition), *values)]
        by_id = {row.id: row for row in rows}
        for number, recorded, at, interaction, spans, version, tokens in self.history.query(
            CALLS.format(condition=condition), *values
        ):
            pairs = msgspec.json.decode(spans) if spans else [] if version is None else [(version, tokens)]
            by_id[number].calls.append(CallRow(recorded, at, interaction, [SampledSpan(*pair) for pair in pairs]))
        for row in rows:
            row.reason = row.reason[:LONGEST_REASON]
        return rows

    def _steps(self, position: int) -> list[StepRow]:
        rows = {row["position"]: StepRow(**row, metrics={}) for row in self._changed(STEPS, position)}
        for completed, name, value in self.history.query(METRICS, position):
            rows[completed].metrics[name] = value
        return list(rows.values())

    def _batches(self, position: int) -> list[BatchRow]:
        batches = {row["position"]: row for row in self._changed(BATCHES, position)}
        groups: dict[int, dict[int, list[int]]] = {formed: {} for formed in batches}
        for formed, number, attempt in self.history.query(MEMBERS, position):
            groups[formed].setdefault(number, []).append(attempt)
        refusals = {at: event for at, _, event in notice_events(self.history, BatchRefused, after=position)}
        for formed, row in batches.items():
            row["groups"], count = list(groups[formed].values()), row["refused"]
            row["refused"] = f"{count} sequences left out: {refused_batch(refusals[row['changed']])}" if count else ""
        return [BatchRow(**row) for row in batches.values()]

    def _evaluations(self, position: int) -> list[EvaluationRow]:
        rows = []
        for row in self._changed(EVALUATIONS, position):
            metrics, measured = msgspec.json.decode(row.pop("metrics")), {name: row.pop(name) for name in HELD_OUT}
            rows.append(EvaluationRow(**row, metrics=metrics if row["mode"] == "examples" else metrics | measured))
        return rows

    def _note_events(self) -> None:
        """Add sentences and staleness bounds of the events since the last call."""
        for position, time, event in run_events(self.history, after=self._noted):
            if event.subject in SHOWN and (sentence := plain_line(event)) is not None:
                number, at = len(self._notices), self.seconds(time)
                row = NoticeRow(
                    id=number, changed=position, position=position, at=at, subject=event.subject, sentence=sentence
                )
                self._notices.append(row)
            if (bound := _staleness_bound(event)) is not None:
                self._bounds.append(
                    BoundRow(id=len(self._bounds), changed=position, max_staleness=bound, position=position)
                )
        self._noted = self.history.progress.last

    def _changed(self, statement: str, position: int) -> list[dict[str, Any]]:
        # Of this module
        return self.history.records(f"SELECT * FROM ({statement}) WHERE changed > ?", position)  # noqa: S608


def _staleness_bound(event: Message) -> int | None:
    """Returns the staleness bound that an event sets; None if it sets none."""
    if isinstance(event, OffPolicyChanged):
        return event.max_staleness if event.max_staleness != event.before else None
    return (
        int(event.recipe.get("staleness_gate", {}).get("max_staleness", 0))
        if isinstance(event, RunStarted | RunResumed)
        else None
    )
