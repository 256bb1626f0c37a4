"""The history of a run: rows of its log in a database, which anybody may delete, damage or leave half-written."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from support.audit_logs import sound_log
from test_episode_counts import LOGS, sealed

from areal_actors.core.errors import SetupError
from areal_actors.history import database
from areal_actors.history.counts import count_episodes
from areal_actors.history.database import DATABASE, History, open_database
from areal_actors.history.run_rows import SCHEMA_VERSION
from areal_actors.history.schema import TABLES
from areal_actors.messages import KINDS, InteractionRecorded, InteractionsRecorded, StepCompleted
from areal_actors.messages.fields import fields_of
from areal_bus import read_log
from areal_bus.message import Event

RECORDINGS = Path(__file__).parent / "recordings"
LOG = list(read_log(RECORDINGS / "log-3.xz"))


def in_memory(log):
    history = History.in_memory()
    for envelope in log:
        history.receive(envelope)
    history.commit()
    return history


def write(folder, log):
    """Bring the database of a folder up to the end of a log; returns the rows of all tables."""
    with open_database(folder) as history:
        for envelope in log:
            if envelope.sequence > history.progress.last:
                history.receive(envelope)
        history.commit()
        rows = all_rows(history)
        history.close()
    return rows


def all_rows(history):
    return {table.table: history.connection.execute(f"SELECT * FROM {table.table}").fetchall() for table in TABLES}


EXPECTED = all_rows(in_memory(LOG))


# ---------------------------------------------------------------- rows


def test_every_event_of_a_recording_has_a_row_or_changes_one():
    history = in_memory(LOG)
    positions = {
        *history.query(
            "SELECT granted FROM group_ UNION SELECT scored FROM attempt UNION SELECT ended FROM attempt UNION SELECT"
            " dropped FROM attempt"
        ),
        *history.query("SELECT recorded FROM call UNION SELECT formed FROM batch UNION SELECT completed FROM step"),
        *history.query(
            "SELECT published FROM version UNION SELECT loaded FROM load UNION SELECT completed FROM evaluation"
        ),
        *history.query(
            "SELECT committed FROM checkpoint UNION SELECT changed FROM actor UNION SELECT measured FROM load_sample"
        ),
        *history.query("SELECT position FROM notice"),
    }
    known = {kind.subject for kind in KINDS if issubclass(kind, Event)}
    assert {envelope.sequence for envelope in LOG if envelope.subject in known} - positions == set()
    assert history.progress.last == LOG[-1].sequence


def test_tokens_versions_and_calls_are_those_of_the_log():
    history = in_memory(LOG)
    exported = {
        envelope.sequence: fields_of(envelope)["trajectory"]
        for envelope in LOG
        if envelope.subject == "trajectory.exported"
    }
    rows = history.records("SELECT * FROM attempt WHERE outcome = 'exported'")
    assert {row["ended"] for row in rows} <= exported.keys()
    for row in rows:
        trajectory = exported[row["ended"]]
        calls = history.records("SELECT * FROM call WHERE attempt_id = ? ORDER BY number", row["id"])
        assert [call["interaction"] for call in calls] == [call["id"] for call in trajectory["interactions"]]
        tokens = [len(call["completion"]["token_ids"]) // 4 for call in trajectory["interactions"]]
        assert [call["completion_tokens"] for call in calls] == tokens
        assert row["completion_tokens"] == sum(tokens)
        assert row["reward"] == trajectory["reward"]


def test_metrics_of_steps_are_one_row_each_and_a_repeated_step_replaces():
    metrics = {"loss": 0.5, "nan": float("nan"), "infinite": float("inf")}
    steps = [StepCompleted(step=step, metrics=metrics, sequences_checksum="c") for step in (1, 2, 3, 2)]
    history = in_memory(sealed(steps))
    assert history.query("SELECT step, replaced FROM step ORDER BY completed") == [(1, None), (2, 4), (3, 4), (2, None)]
    assert history.query("SELECT name, value FROM metric WHERE completed = 4 ORDER BY name") == [
        ("infinite", float("inf")),
        ("loss", 0.5),
        ("nan", None),
    ]


def test_a_call_that_is_reported_after_its_attempt_was_abandoned_is_a_call_of_that_attempt(tmp_path):
    log = LOGS["surplus"]()
    facts = {
        "interaction": "late",
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "finish_reason": "stop",
        "weight_version": 0,
    }
    late = InteractionRecorded(session="s", episode="1.0", attempt=1, **facts)
    (sealed_call,) = sealed([InteractionsRecorded(recorded=(late,))])
    log.append(msgspec.structs.replace(sealed_call, sequence=len(log) + 1))
    for cut in (0, len(log) - 1):
        (tmp_path / str(cut)).mkdir()
        write(tmp_path / str(cut), log[:cut])
        write(tmp_path / str(cut), log)
        with open_database(tmp_path / str(cut)) as history:
            query = (
                "SELECT episode, attempt, outcome, calls, completion_tokens FROM attempt WHERE episode = '1.0' ORDER"
                " BY id"
            )
            assert history.query(query)[0] == ("1.0", 1, "abandoned", 1, 2)
            assert history.query("SELECT interaction FROM call WHERE interaction = 'late'") == ["late"]
            history.close()


@pytest.mark.parametrize("name", LOGS)
def test_a_database_that_grows_with_the_log_is_the_one_made_at_once(name, tmp_path):
    log = LOGS[name]()
    for cut in random.Random(0).sample(range(len(log)), 2):
        folder = tmp_path / str(cut)
        folder.mkdir()
        write(folder, log[:cut])
        assert write(folder, log) == all_rows(in_memory(log))


# ---------------------------------------------------------------- a file that anybody may delete or damage


def test_a_database_that_is_up_to_date_is_only_opened(tmp_path):
    assert write(tmp_path, LOG) == EXPECTED
    before = (tmp_path / DATABASE).read_bytes()
    assert write(tmp_path, LOG) == EXPECTED
    assert (tmp_path / DATABASE).read_bytes() == before


def test_a_deleted_database_is_built_again(tmp_path):
    write(tmp_path, LOG)
    (tmp_path / DATABASE).unlink()
    assert write(tmp_path, LOG) == EXPECTED


@pytest.mark.parametrize("place", range(12))
def test_a_damaged_database_is_built_again(place, tmp_path):
    write(tmp_path, LOG)
    path = tmp_path / DATABASE
    content = bytearray(path.read_bytes())
    content[len(content) * place // 12 + 17] ^= 0xFF
    path.write_bytes(content)
    assert write(tmp_path, LOG) == EXPECTED


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0" + bytes(5000)])
def test_a_file_that_is_no_database_is_replaced(content, tmp_path):
    (tmp_path / DATABASE).write_bytes(content)
    assert write(tmp_path, LOG) == EXPECTED


def test_a_cut_off_database_is_built_again(tmp_path):
    write(tmp_path, LOG)
    path = tmp_path / DATABASE
    path.write_bytes(path.read_bytes()[:20_000])
    assert write(tmp_path, LOG) == EXPECTED


def test_a_database_of_another_version_is_built_again_with_a_sentence(tmp_path, caplog):
    write(tmp_path, LOG)
    connection = sqlite3.connect(tmp_path / DATABASE)
    connection.execute("DROP TABLE call")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION - 1}")
    connection.close()
    caplog.clear()
    assert write(tmp_path, LOG) == EXPECTED
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    sentence = f"is built again from the log: it has version {SCHEMA_VERSION - 1}, expected {SCHEMA_VERSION}"
    assert sentence in warning.getMessage()


def test_a_row_that_another_program_changed_is_made_again(tmp_path):
    write(tmp_path, LOG)
    connection = sqlite3.connect(tmp_path / DATABASE, isolation_level=None)
    connection.execute("UPDATE attempt SET reward = 7")
    connection.close()
    assert write(tmp_path, LOG) == EXPECTED


KILLED = """
import os, signal, sys
from pathlib import Path
from areal_actors.history import database
from areal_actors.history.database import open_database
from areal_bus import read_log
database.EVENTS_AT_ONCE = 50
with open_database(Path(sys.argv[1])) as history:
    for envelope in read_log(Path(sys.argv[2])):
        if envelope.sequence > history.progress.last:
            history.receive(envelope)
        if envelope.sequence == int(sys.argv[3]):
            history.commit()
        if envelope.sequence == int(sys.argv[4]):
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("committed", "killed"), [(0, 30), (0, 220), (100, 260)])
def test_a_writer_killed_at_any_moment_leaves_what_the_next_completes(committed, killed, tmp_path):
    words = [sys.executable, "-c", KILLED, str(tmp_path), str(RECORDINGS / "log-3.xz"), str(committed), str(killed)]
    assert subprocess.run(words, check=False, stderr=subprocess.DEVNULL).returncode < 0
    assert write(tmp_path, LOG) == EXPECTED


def test_a_folder_that_cannot_be_written_is_read_through_memory(tmp_path, monkeypatch):
    write(tmp_path, LOG[:100])
    before = sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir())
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert write(tmp_path, LOG) == EXPECTED
    assert sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir()) == before


def test_a_file_system_without_locks_is_read_through_memory(tmp_path, monkeypatch):
    write(tmp_path, LOG[:100])

    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert write(tmp_path, LOG) == EXPECTED


def test_a_second_command_waits_for_the_first_and_has_its_rows(tmp_path):
    entered, rows = threading.Event(), []

    def second():
        entered.wait()
        rows.append(write(tmp_path, LOG))

    other = threading.Thread(target=second)
    other.start()
    with open_database(tmp_path) as history:
        entered.set()
        for envelope in LOG:
            history.receive(envelope)
        history.commit()
        history.close()
    other.join()
    assert rows == [EXPECTED]


def test_a_database_that_stays_held_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "LOCK_SECONDS", 0.1)
    with (
        open_database(tmp_path),
        pytest.raises(SetupError, match=r"history\.lock.*another command"),
        open_database(tmp_path),
    ):
        pass


def test_readers_keep_their_rows_while_a_command_writes(tmp_path):
    write(tmp_path, LOG[:200])
    with open_database(tmp_path) as reader:
        pass
    reader.connection.execute("BEGIN")
    before = count_episodes(reader)
    write(tmp_path, LOG)
    assert count_episodes(reader) == before
    reader.connection.execute("COMMIT")
    assert count_episodes(reader) == count_episodes(in_memory(LOG))
    reader.close()
    assert write(tmp_path, LOG) == EXPECTED


def test_rows_of_another_log_can_be_removed(tmp_path):
    write(tmp_path, list(sealed(sound_log())))
    with open_database(tmp_path) as history:
        history.clear()
        history.close()
    assert write(tmp_path, LOG) == EXPECTED


def test_an_answer_holds_until_the_log_grows(tmp_path):
    write(tmp_path, LOG[:200])
    with open_database(tmp_path) as history:
        pass
    history.keep_answer("why-1", b"because")
    assert history.answer("why-1") == b"because"
    assert history.answer("why-2") is None
    history.close()
    write(tmp_path, LOG)
    with open_database(tmp_path) as history:
        assert history.answer("why-1") is None
        history.close()


def test_json_columns_are_json():
    history = in_memory(LOG)
    for table, column in (("run", "recipe"), ("notice", "fields"), ("evaluation", "metrics"), ("attempt", "metrics")):
        for text in history.query(f"SELECT {column} FROM {table}"):
            assert isinstance(json.loads(text), dict)
