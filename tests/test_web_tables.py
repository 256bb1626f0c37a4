"""The tables of a run's page: the numbers of the other readers, and enough positions to show any earlier moment."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest
from support.audit_logs import STARTED, exported, given_up, published, sound_log

from areal_actors.history import DATABASE, History
from areal_actors.history.database import copy_into_memory, store_copy
from areal_actors.messages import (
    BatchFormed,
    BatchRefused,
    CapacityGranted,
    InteractionRecorded,
    InteractionsRecorded,
    OffPolicyChanged,
    RefusedSequence,
    StepCompleted,
    TrajectoryExported,
)
from areal_actors.reader import open_run
from areal_actors.web.tables import PageTables
from areal_bus.base import Envelope, Stamp
from areal_bus.errors import CorruptMessage
from areal_bus.recorded import FORMAT_VERSION, LogCopy, read_log

LOG = Path(__file__).parent / "recordings" / f"log-{FORMAT_VERSION}.xz"


def envelopes(events):
    for number, event in enumerate(events, start=1):
        stamp = Stamp(id=f"m{number}", sender="test", time=1.7e9 + number)
        yield msgspec.structs.replace(Envelope.seal(event, stamp, "a"), sequence=number)


def tables_of(log):
    """The tables of a log, each event of which was received."""
    tables = PageTables(History.in_memory())
    for envelope in log:
        tables.history.receive(envelope)
    return tables


def rows_of(log):
    return tables_of(log).rows_changed_after(0)


@pytest.fixture(scope="module")
def run():
    return open_run(LOG)


@pytest.fixture(scope="module")
def tables():
    return tables_of(read_log(LOG))


@pytest.fixture(scope="module")
def rows(tables):
    return tables.rows_changed_after(0)


def test_every_ended_attempt_has_the_numbers_of_the_reader(run, tables, rows):
    ended = {row.ended: row for row in rows["episodes"] if row.ended}
    assert len(ended) == len(run.episodes) > 80
    for known in run.episodes:
        row = ended[known["sequence"]]
        assert (row.name, row.attempt, row.group, row.purpose) == tuple(
            known[name] for name in ("episode", "attempt", "group", "purpose")
        )
        assert (row.task, row.outcome, row.reward) == (known["task_id"], known["outcome"], known["reward"])
        assert row.tokens == known["completion_tokens"]
        assert (row.step or None) == known["step"]
        assert row.ended_at == pytest.approx(known["time"] - tables.history.progress.began, abs=0.001)
        if known["outcome"] == "exported":
            assert len(row.calls) == known["interactions"]
            assert min(span.weight_version for call in row.calls for span in call.spans) == known["oldest_version"]


def test_steps_evaluations_and_versions_are_those_of_the_reader(run, rows):
    assert [row.metrics for row in rows["steps"]] == [step.metrics for step in run.state.steps]
    assert [(row.mode, row.metrics["accuracy"]) for row in rows["evaluations"]] == [
        (one.mode, one.accuracy) for one in run.state.evaluations
    ]
    assert max(row.weight_version for row in rows["versions"]) == run.state.weight_version
    assert [row.step for row in rows["batches"]] == list(run.records.batches)
    for row in rows["batches"]:
        members = [[rows["episodes"][number].name for number in group] for group in row.groups]
        assert members == [[one.episode for one in group] for group in run.records.batches[row.step].event.groups]


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_the_positions_of_the_rows_give_the_tables_of_any_earlier_event(rows, share):
    envelopes_ = list(read_log(LOG))
    moment = envelopes_[int(share * len(envelopes_))].sequence
    earlier = rows_of(envelope for envelope in envelopes_ if envelope.sequence <= moment)
    stations = [station(row, moment) for row in rows["episodes"] if row.granted <= moment]
    assert Counter(stations) == Counter(station(row, moment) for row in earlier["episodes"])
    for name, table in earlier.items():
        if name != "episodes":
            assert len(table) == sum(row.position <= moment for row in rows[name]), name


def test_calls_reported_together_are_those_of_their_attempts():
    counts = {"prompt_tokens": 5, "completion_tokens": 2, "finish_reason": "stop", "weight_version": 4}
    first, second = (
        InteractionRecorded(
            session="s", episode="3.0", interaction=f"i{attempt}", attempt=attempt, time=1.7e9 + 2.5, **counts
        )
        for attempt in (1, 2)
    )
    together = InteractionsRecorded(recorded=(first, second))
    events = [
        STARTED,
        CapacityGranted(first_group=3, groups=1, weight_version=0),
        given_up("3.0", 1),
        together,
        given_up("3.0", attempt=2),
    ]
    rows = rows_of(envelopes(events))["episodes"]
    assert [
        (row.attempt, [(call.interaction, call.at) for call in row.calls]) for row in rows if row.name == "3.0"
    ] == [
        (1, [("i1", 1.5)]),
        (2, [("i2", 1.5)]),
    ]


def station(row, moment):
    """As `RunData.station` in data.js."""
    for position, name in (
        (row.dropped, "dropped"),
        (row.trained, "trained"),
        (row.batch, "in batch"),
        (row.ended, row.outcome),
    ):
        if 0 < position <= moment:
            return name
    if 0 < row.scored <= moment:
        return "scored"
    return "sampling" if any(call.position <= moment for call in row.calls) else "granted"


def test_rows_that_changed_after_an_event_complete_those_before_it(rows):
    log = list(read_log(LOG))
    moving = PageTables(History.in_memory())
    kept = {name: {} for name in rows}
    known = 0
    for number, envelope in enumerate(log):
        moving.history.receive(envelope)
        if number % 37 == 0 or number == len(log) - 1:
            changes = msgspec.json.decode(msgspec.json.encode(moving.rows_changed_after(known)))
            for name, changed in changes.items():
                kept[name] |= {row[0]: row for row in changed}
            known = moving.history.progress.last
    whole = msgspec.json.decode(msgspec.json.encode(rows))
    assert {name: [table[number] for number in sorted(table)] for name, table in kept.items()} == whole
    assert all([row[0] for row in table] == list(range(len(table))) for table in whole.values())


def test_a_page_that_begins_with_a_stored_history_has_the_same_rows(rows, tmp_path):
    log = list(read_log(LOG))
    first = History.in_memory()
    for envelope in log[: len(log) // 2]:
        first.receive(envelope)
    first.commit()
    store_copy(first, tmp_path)
    tables = PageTables(copy_into_memory(tmp_path / DATABASE))
    assert tables.history.progress.last == log[len(log) // 2 - 1].sequence
    for envelope in log[len(log) // 2 :]:
        tables.history.receive(envelope)
    assert msgspec.json.encode(tables.rows_changed_after(0)) == msgspec.json.encode(rows)


def test_drops_retries_and_given_up_episodes_have_rows_with_their_reasons():
    tables = tables_of(envelopes(sound_log()))
    rows = tables.rows_changed_after(0)["episodes"]
    assert {row.reason for row in rows if row.dropped} == {"stale"}
    assert all(row.reason.startswith("agent: ") for row in rows if row.outcome == "abandoned")
    assert tables.facts().finished
    assert tables.facts().recipe == STARTED.recipe
    again = rows_of(
        envelopes(
            [
                STARTED,
                CapacityGranted(first_group=4, groups=1, weight_version=0),
                given_up("4.0", 1),
                exported("4.0", 1),
            ]
        )
    )
    attempts = [(row.attempt, row.outcome) for row in again["episodes"] if row.name == "4.0"]
    assert attempts[0] == (1, "abandoned")
    assert attempts[1][1] == "exported"


def test_a_step_that_a_restarted_trainer_repeats_replaces_the_later_ones():
    steps = [
        StepCompleted(step=step, metrics={"loss": float(place)}, sequences_checksum="")
        for place, step in enumerate((1, 2, 3, 2))
    ]
    rows = rows_of(envelopes([STARTED, *steps]))["steps"]
    assert [(row.step, row.replaced) for row in rows] == [(1, 0), (2, 5), (3, 5), (2, 0)]


def test_a_lowered_bound_and_a_refused_batch_are_in_the_tables():
    changed = OffPolicyChanged(step=1, outside=(), max_staleness=1, before=2)
    totals = {"trained_trajectories": 0, "trained_tokens": 0, "dropped_trajectories": 0, "dropped_tokens": 0}
    batch = BatchFormed(step=0, groups=(), oldest_version=0, **totals)
    refused = BatchRefused(step=0, sequences=(RefusedSequence(episode="0.0", cause="NaN"),), trained_sequences=1)
    rows = rows_of(envelopes([STARTED, changed, batch, refused]))
    assert [row.max_staleness for row in rows["bounds"]] == [0, 1]
    assert "NaN" in rows["batches"][0].refused
    assert any("staleness bound 2 → 1" in row.sentence for row in rows["notices"])


def test_a_log_whose_beginning_was_trimmed_has_what_is_left():
    log = [envelope for envelope in envelopes([STARTED, published(0), *sound_log()]) if envelope.sequence > 20]
    tables = tables_of(log)
    rows = tables.rows_changed_after(0)
    assert tables.history.progress.first == 21
    assert rows["episodes"]
    assert any(-1 in group for batch in rows["batches"] for group in batch.groups)


def test_a_damaged_event_is_named_with_its_position():
    (envelope,) = envelopes([exported("0.0", 0)])
    with pytest.raises(CorruptMessage, match=r"event 1, trajectory\.exported: the checksum"):
        History.in_memory().receive(msgspec.structs.replace(envelope, checksum=1))


def test_a_copy_of_a_log_is_read_while_it_is_written(tmp_path):
    copy = LogCopy(tmp_path / "run.log", "a")
    log = list(envelopes(sound_log()))
    for number, envelope in enumerate(log):
        copy.write(envelope)
        assert copy.read(envelope.sequence) == envelope
        assert copy.read(log[number // 2].sequence) == log[number // 2]
    assert copy.read(len(log) + 1) is None
    assert copy.read(0) is None
    copy.flush()
    assert [one.sequence for one in read_log(tmp_path / "run.log")] == [one.sequence for one in log]
    assert read_log(tmp_path / "run.log").__next__().subject == "run.started"
    assert copy.read(1).subject != TrajectoryExported.subject
    copy.close()
