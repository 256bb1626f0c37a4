"""All readers of a log give the same answers: attempts with their calls and ends, steps, weights, evaluations; on every
recording."""

from __future__ import annotations

import io
import json
from collections import Counter

import msgspec
import pytest
from rich.console import Console
from support.count_readers import run_state, write_log_file
from test_episode_counts import LOGS

from areal_actors.display.recorded_state import recorded_state
from areal_actors.folder.run_folder import RunFolder
from areal_actors.metrics.metrics_file import Metrics
from areal_actors.reader import open_run
from areal_actors.reader.episode_page import EpisodeFilter, show
from areal_actors.reader.recorded_history import history_of_file
from areal_actors.reader.run_files import read_run_files
from areal_actors.replay.episode_trace import trace_episode
from areal_actors.runtime.log_context import LogContext
from areal_actors.track.follow import follow_file
from areal_actors.web.tables import PageTables

ATTEMPT = (
    "episode",
    "attempt",
    "group",
    "purpose",
    "task_id",
    "outcome",
    "step",
    "reward",
    "reason",
    "completion_tokens",
    "interactions",
)
KINDS_OF_METRICS = {kind.subject: kind for kind in Metrics.handlers}
IN_DATABASE = """
SELECT episode, attempt, group_, purpose, task, outcome, step, reward,
       coalesce(nullif(reason, ''), drop_reason), completion_tokens, calls
FROM attempt WHERE ended IS NOT NULL ORDER BY ended
"""


@pytest.fixture(params=LOGS)
def log(request):
    return LOGS[request.param]()


@pytest.fixture
def path(log, tmp_path):
    return write_log_file(log, tmp_path)


def attempts_of_open_run(path):
    return [tuple(row[name] for name in ATTEMPT) for row in open_run(path).episodes]


def attempts_of_show(path):
    screen = io.StringIO()
    show(
        str(path),
        folder=path.parent,
        chosen=EpisodeFilter(last=1_000_000),
        as_json=True,
        console=Console(file=screen, width=100),
    )
    rows = [json.loads(line) for line in screen.getvalue().splitlines()]
    return [tuple(len(row[name]) if name == "interactions" else row[name] for name in ATTEMPT) for row in rows]


def attempts_of_page(path):
    """The page has reason and detail of a failure in one column."""
    rows = sorted(
        (row for row in PageTables(history_of_file(path)).episodes("ended IS NOT NULL")), key=lambda row: row.ended
    )
    return [
        (
            *(row.name, row.attempt, row.group, row.purpose, row.task, row.outcome, row.step or None, row.reward),
            *(row.reason.partition(": ")[0], row.tokens, len(row.calls)),
        )
        for row in rows
    ]


def attempts_of_database(path):
    history = history_of_file(path)
    return [tuple(row) for row in history.connection.execute(IN_DATABASE)]


def test_every_attempt_is_the_same_in_open_run_show_page_and_database(path):
    expected = attempts_of_open_run(path)
    assert expected
    for reader in (attempts_of_show, attempts_of_page, attempts_of_database):
        assert reader(path) == expected, reader.__name__


def test_an_episode_has_in_its_trace_what_the_list_has(path):
    run = open_run(path)
    counted = Counter(row["outcome"] for row in run.episodes)
    for outcome in counted:
        row = next(row for row in run.episodes if row["outcome"] == outcome)
        if "staleness_gate" not in run.recipe:
            continue  # a made-up log has no whole recipe
        traced = trace_episode(run, row["episode"], row["attempt"])
        assert (traced.task, traced.purpose, traced.reward, traced.step) == (
            row["task_id"],
            row["purpose"],
            row["reward"],
            row["step"],
        )
        assert len(traced.calls) == row["interactions"]
        assert sum(call.completion_tokens for call in traced.calls) == row["completion_tokens"]


def test_steps_weights_and_evaluations_are_the_same_in_every_reader(log, path):
    live, run, history = run_state(log), open_run(path), history_of_file(path)
    page, points = PageTables(history).rows_changed_after(0), list(follow_file(path).points())
    steps = [(step.number, step.time, step.metrics) for step in live.steps]
    assert [(step.number, step.time, step.metrics) for step in recorded_state(history).steps] == steps
    assert [(row["step"], row["time"]) for row in run.steps] == [step[:2] for step in steps]
    assert [(row.step, row.metrics) for row in page["steps"] if not row.replaced] == [
        (number, metrics) for number, _, metrics in steps
    ]
    newest = {
        point.step: point.metrics
        for point in points
        if not any(name.startswith("evaluation/") for name in point.metrics)
    }
    assert {number: newest[number] for number, *_ in steps} == {number: metrics for number, _, metrics in steps}
    assert max((row.weight_version for row in page["versions"] if not row.worker), default=-1) == live.weight_version
    evaluated = [(one.weight_version, one.mode, one.accuracy, one.reward_mean) for one in live.evaluations]
    assert [
        (row["weight_version"], row["mode"], row["accuracy"], row["reward_mean"]) for row in run.evaluations
    ] == evaluated
    assert [
        (row.weight_version, row.mode, row.metrics["accuracy"], row.metrics["reward_mean"])
        for row in page["evaluations"]
    ] == evaluated
    ends = PageTables(history)
    ends.rows_changed_after(0)
    assert ends.facts().finished == live.finished
    assert ends.facts().recipe == msgspec.to_builtins(live.started.recipe)


def test_lines_of_metrics_have_the_times_of_their_events(log, tmp_path):
    """So that `runs` and `compare` show for a folder what they show for its exported log."""
    place = RunFolder(tmp_path / "run")
    place.path.mkdir()
    (place.path / "recipe.json").write_text("{}")
    metrics = Metrics(place.metrics)
    for envelope in log:
        kind = KINDS_OF_METRICS.get(envelope.subject)
        if kind is not None:
            late = LogContext(envelope, {})
            late.now += 5.0  # the actor began later, or was busy
            metrics.write(envelope.open(kind), late)
    live, listed = run_state(log), read_run_files(place).state
    assert listed.started_at == live.started_at
    assert [(step.number, step.time) for step in listed.steps] == [(step.number, step.time) for step in live.steps]
    assert listed.finished == live.finished
