"""Readers of a run: its tables, the list of runs, its episodes, and the comparison of runs, from logs and files."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys

import msgspec
import pyarrow.parquet
import pytest
from rich.console import Console
from support.audit_logs import RECIPE, STARTED, exported, given_up, published, sound_log
from support.live_run import ROOT

from areal_actors.cli import main
from areal_actors.core.errors import SetupError
from areal_actors.messages import (
    EvaluationCompleted,
    InteractionRecorded,
    InteractionsRecorded,
    RunFinished,
    StepCompleted,
)
from areal_actors.metrics.metrics_file import Metrics
from areal_actors.reader import Table, open_run
from areal_actors.reader.comparison import compare, differences
from areal_actors.reader.episode_page import show
from areal_actors.reader.listing import list_runs
from areal_actors.reader.run_files import find_run_files
from areal_actors.replay.episode_trace import trace_episode
from areal_bus.base import Envelope, Stamp
from areal_bus.recorded import Header, _write


def exported_log(path, events, run="a"):
    """Write an exported log; the events are a second apart."""
    with path.open("wb") as file:
        _write(file, Header(holds="log", run=run))
        for number, event in enumerate(events, start=1):
            envelope = Envelope.seal(event, Stamp(id=f"m{number}", sender="test", time=1.7e9 + number), run)
            _write(file, msgspec.structs.replace(envelope, sequence=number))
    return path


def run_folder(folder, name, *, recipe=RECIPE, rewards=(), held_out=(), finished=True, error=""):
    """A run's folder with its recipe and its metrics, as the run writes them."""
    place = folder / name
    place.mkdir(parents=True)
    (place / "recipe.json").write_text(json.dumps({"run": name, **recipe}))
    events = [msgspec.structs.replace(STARTED, recipe={"run": name, **recipe})]
    events += [
        StepCompleted(step=n, metrics={"reward_mean": reward}, sequences_checksum="")
        for n, reward in enumerate(rewards, 1)
    ]
    for n, accuracy in enumerate(held_out):
        found = {"tasks": 4, "failed": 0, "accuracy": accuracy, "mean_tokens": 3.0, "sampled_by": {n: 12}}
        events.append(EvaluationCompleted(weight_version=n, mode="greedy", **found))
    events += [RunFinished(steps=len(rewards), error=error)] * finished
    written = Metrics(place / "metrics.jsonl")
    for number, event in enumerate(events):
        written.write(event, At(1.7e9 + 10 * number))
    return place


class At:
    """Context of an event at this time."""

    replayed = False

    def __init__(self, now):
        self.sent = now


def printed(reader, *arguments, width=100, **options):
    """Text that a reader prints on a screen of this width."""
    screen = Console(file=io.StringIO(), width=width)
    assert reader(*arguments, console=screen, **options) == 0
    return screen.file.getvalue()


# ---------------------------------------------------------------- tables


def test_an_exported_log_has_each_attempt_with_the_step_that_trained_it(tmp_path):
    run = open_run(exported_log(tmp_path / "a.log", sound_log()))
    outcomes = {(row["episode"], row["outcome"], row["step"], row["reason"]) for row in run.episodes}
    assert ("0.0", "exported", 1, "") in outcomes
    assert ("2.1", "exported", None, "stale") in outcomes
    assert ("3.0", "abandoned", None, "agent") in outcomes
    assert ("6.1", "exported", 3, "") in outcomes
    assert [row["step"] for row in run.steps] == [1, 2, 3]
    assert run.steps["loss"] == [0.5, 0.5, 0.5]
    assert [row["step"] for row in run.episodes if row["episode"] == "5.0"] == [2]  # exported twice, which counts once
    assert run.recipe == RECIPE


def test_tokens_are_those_of_the_log(tmp_path):
    run = open_run(exported_log(tmp_path / "a.log", sound_log()))
    rows = list(run.tokens("4.0"))
    assert [row["token_id"] for row in rows] == [7, 4, 9]
    assert [row["logprob"] for row in rows] == [-0.5, -0.25, -1.0]
    assert {row["weight_version"] for row in rows} == {1}
    assert {row["token"] for row in rows} == {None}  # an exported log has no tokenizer
    assert len(run.tokens()) == 3 * sum(row["outcome"] == "exported" for row in run.episodes)
    assert run.interactions["mean_logprob"][0] == pytest.approx(-1.75 / 3)


def test_calls_of_an_abandoned_attempt_have_their_counts_and_no_text(tmp_path):
    call = InteractionRecorded(
        session="s",
        episode="3.0",
        interaction="i3",
        prompt_tokens=5,
        completion_tokens=2,
        finish_reason="stop",
        weight_version=4,
    )
    run = open_run(exported_log(tmp_path / "a.log", [STARTED, call, given_up("3.0", 1), given_up("3.0")]))
    first, second = run.episodes
    assert (first["interactions"], first["prompt_tokens"], first["completion_tokens"], first["newest_version"]) == (
        1,
        5,
        2,
        4,
    )
    assert second["interactions"] == 0
    (row,) = run.interactions
    assert (row["interaction"], row["completion"]) == ("i3", None)


def test_calls_reported_after_the_end_of_their_attempt_are_its_own(tmp_path):
    call = InteractionRecorded(
        session="s",
        episode="3.0",
        interaction="i3",
        prompt_tokens=5,
        completion_tokens=2,
        finish_reason="stop",
        weight_version=4,
        time=1.7e9,
        attempt=1,
    )
    events = [STARTED, given_up("3.0", 1), InteractionsRecorded(recorded=(call,)), given_up("3.0", attempt=2)]
    first, second = open_run(exported_log(tmp_path / "a.log", events)).episodes
    assert (first["interactions"], first["completion_tokens"], second["interactions"]) == (1, 2, 0)


def test_events_have_every_event_of_the_log_in_order(tmp_path):
    events = sound_log()
    run = open_run(exported_log(tmp_path / "a.log", events))
    assert run.events()["subject"] == [event.subject for event in events]
    (finished,) = run.events("run.finished")
    assert json.loads(finished["message"]) == {"steps": 3, "error": ""}


def test_tables_convert_to_pandas_and_parquet_and_back(tmp_path):
    run = open_run(exported_log(tmp_path / "a.log", sound_log()))
    for table in (run.steps, run.evaluations, run.episodes, run.interactions, run.tokens(), run.events()):
        written = pyarrow.parquet.read_table(table.parquet(tmp_path / "t.parquet"))
        assert written.column_names == list(table.columns)
        assert written.to_pylist() == list(table)
        assert list(table.pandas().columns) == list(table.columns)
        assert len(table.pandas()) == len(table)


def test_a_missing_library_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SetupError, match=r"pyarrow is not installed.*areal-actors\[reader\]"):
        Table("steps", {"step": [1]}).arrow()


def test_an_unknown_column_is_answered_with_the_columns():
    with pytest.raises(KeyError, match="steps has no column 'reward'; its columns: step, loss"):
        Table("steps", {"step": [1], "loss": [0.5]})["reward"]


def test_of_a_log_that_is_cut_off_the_whole_events_are_read_and_the_rest_is_named(tmp_path):
    log = exported_log(tmp_path / "a.log", sound_log())
    log.write_bytes(log.read_bytes()[:-3])
    run = open_run(log)
    assert len(run.events()) == len(sound_log()) - 1
    assert len(run.steps) == 3
    assert run.notice.startswith(f"only the first {len(sound_log()) - 1} events are read: ")


def test_of_a_log_with_a_damaged_event_those_before_it_are_read(tmp_path):
    log = exported_log(tmp_path / "a.log", sound_log())
    content = log.read_bytes()
    place = content.index(b"sequences_checksum")
    log.write_bytes(content[: place + 1] + b"X" + content[place + 2 :])
    run = open_run(log)
    assert "checksum does not match" in run.notice
    assert len(run.steps) == 0
    assert len(run.episodes) == 6


def test_a_file_that_is_no_log_is_refused(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("hello")
    assert main(["show", str(tmp_path / "notes.txt")]) == 1
    assert "cannot be read as an exported log" in capsys.readouterr().err


# ---------------------------------------------------------------- the list of runs


def test_the_list_has_each_run_with_its_status_and_results(tmp_path):
    run_folder(tmp_path, "done", rewards=[0.25, 0.75], held_out=[0.1, 0.9])
    run_folder(tmp_path, "killed", rewards=[0.5], finished=False)
    run_folder(tmp_path, "broken", rewards=[0.5], error="the disk is full")
    text = printed(list_runs, tmp_path, width=160)
    lines = {line.split()[0]: line for line in text.splitlines()[1:]}
    assert "finished" in lines["done"]
    assert "0.250 → 0.750" in lines["done"]
    assert "0.100 → 0.900" in lines["done"]
    assert "2/3" in lines["done"]
    assert "interrupted" in lines["killed"]
    assert "ended early" in lines["broken"]
    found = {run["run"]: run for run in json.loads(printed(list_runs, tmp_path, as_json=True))}
    assert found["broken"]["error"] == "the disk is full"
    assert found["done"]["held_out"] == [0.1, 0.9]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_list_fits_the_screen_and_never_cuts_a_name(tmp_path, width):
    name = "a-run-with-a-long-name.12"
    run_folder(tmp_path, name, rewards=[0.25, 0.75], held_out=[0.1, 0.9])
    text = printed(list_runs, tmp_path, width=width)
    assert name in text
    assert len(text.splitlines()) == 2
    assert max(map(len, text.splitlines())) <= width
    assert ("data" in text) == (width > 100)


def test_a_step_with_a_metric_that_is_not_a_number_is_listed(tmp_path):
    place = run_folder(tmp_path, "a", rewards=[0.5, float("nan"), 0.7])
    assert "null" in (place / "metrics.jsonl").read_text()
    assert [step.number for step in find_run_files("a", tmp_path).state.steps] == [1, 2, 3]
    run_folder(tmp_path, "b", rewards=[0.5])
    assert "0.6 → 0.6" in printed(compare, ["a", "b"], folder=tmp_path)


def test_a_torn_line_of_the_metrics_is_named(tmp_path):
    place = run_folder(tmp_path, "a", rewards=[0.5])
    with (place / "metrics.jsonl").open("a") as file:
        file.write('{"time": 17')
    run_folder(tmp_path, "b", rewards=[0.5])
    assert "metrics.jsonl: line 4 is truncated or damaged" in printed(compare, ["a", "b"], folder=tmp_path, width=200)


def test_lines_of_another_version_are_counted(tmp_path):
    place = run_folder(tmp_path, "a", rewards=[0.5])
    with (place / "metrics.jsonl").open("a") as file:
        file.write('{"time": 17, "kind": "step.completed", "step": "two"}\n')
    assert find_run_files("a", tmp_path).complaint == "1 line of another version ignored"


def test_a_folder_without_runs_and_one_that_is_missing_have_a_sentence(tmp_path):
    assert "start one with `areal-actors run RECIPE`" in printed(list_runs, tmp_path)
    with pytest.raises(SetupError, match="--folder PATH"):
        list_runs(tmp_path / "nowhere")


# ---------------------------------------------------------------- comparison


def test_recipes_are_compared_setting_by_setting():
    one = {"run": "a", "folder": "x", "trainer": {"lr": 1.0, "ranks": 1}, "extra": {}}
    other = {"run": "b", "folder": "y", "trainer": {"lr": 2.0, "ranks": 1, "new": None}, "extra": {}}
    assert differences([one, other]) == {"trainer.lr": [1.0, 2.0], "trainer.new": ["not set", None]}
    assert differences([one, one]) == {}


def test_a_comparison_shows_settings_results_and_curves(tmp_path):
    run_folder(tmp_path, "a", rewards=[0.1] * 5 + [0.9] * 5, held_out=[0.2, 0.8, 0.7])
    run_folder(tmp_path, "b", recipe={**RECIPE, "seed": 4}, rewards=[0.1] * 3)
    picture = tmp_path / "curves.png"
    text = printed(compare, ["a", "b"], folder=tmp_path, plot=picture)
    for words in ("seed", "not set", "finished", "10 of 3", "0.200 → 0.700", "0.800 at step 1", "0.1 → 0.9"):
        assert words in text
    assert picture.read_bytes().startswith(b"\x89PNG")
    found = json.loads(printed(compare, ["a", "b"], folder=tmp_path, as_json=True))
    assert found["recipe"] == {"seed": ["not set", 4]}
    assert found["metrics"]["reward_mean"]["b"] == [0.1, 0.1, 0.1]


def test_folders_and_exported_logs_are_compared_too(tmp_path):
    log = exported_log(tmp_path / "a.log", sound_log())
    place = run_folder(tmp_path / "x", "a", rewards=[0.5])
    other = run_folder(tmp_path / "y", "a", rewards=[0.7])
    text = printed(compare, [str(log), str(place), str(other)], folder=tmp_path / "nowhere", width=400)
    assert "a.log" in text
    assert str(place) in text
    assert str(other) in text


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["compare", "a"], "name two or more, as in `areal-actors compare A B`"),
        (["compare", "a", "c"], "has no run 'c', and no run's folder or log file has that path; runs there: a, b"),
        (["compare", "a", "b", "--metric", "rewards"], "--metric rewards: no run has it; its metrics: reward_mean"),
        (["compare", "a", "b", "--plot", "nowhere/x.png"], "--plot nowhere/x.png: cannot be written"),
        (["compare", "a", "b", "--plot", "x.nonsense"], "--plot x.nonsense: cannot be written"),
        (["show", "a"], "holds no log"),
        (["runs", "--folder", "nowhere"], "name another folder: --folder PATH"),
    ],
)
def test_a_wrong_word_is_answered_with_what_helps(tmp_path, capsys, words, complaint):
    run_folder(tmp_path, "a", rewards=[0.5])
    run_folder(tmp_path, "b", rewards=[0.7])
    assert main([*words, *([] if "--folder" in words else ["--folder", str(tmp_path)])]) != 0
    assert complaint in capsys.readouterr().err


# ---------------------------------------------------------------- episodes


def test_the_list_of_episodes_is_filtered(tmp_path):
    log = exported_log(tmp_path / "a.log", sound_log())
    names = [
        json.loads(line)["episode"] for line in printed(show, str(log), folder=tmp_path, as_json=True).splitlines()
    ]
    assert names[-4:] == ["6.0", "7.0", "6.1", "7.1"]


@pytest.mark.parametrize(
    ("words", "count"), [("--step 3", 4), ("--outcome abandoned", 4), ("--last 2", 2), ("--task other", 0)]
)
def test_the_options_of_the_command_choose_episodes(tmp_path, capsys, words, count):
    log = exported_log(tmp_path / "a.log", sound_log())
    assert main(["show", str(log), "--json", *words.split()]) == 0
    assert len(capsys.readouterr().out.splitlines()) == count


def test_an_episode_is_shown_with_all_its_attempts_and_tokens(tmp_path):
    log = exported_log(tmp_path / "a.log", [STARTED, published(0), given_up("4.0", 1), exported("4.0", 1)])
    text = printed(show, str(log), "4.0", folder=tmp_path, tokens=True)
    assert "abandoned: agent: ValueError" in text
    assert "rewarded, not trained" in text
    assert "3 sampled · weight version 1 · stop · mean log p -0.583" in text
    assert "-0.2500" in text
    with pytest.raises(SetupError, match=r"no ended episode '9.9'; the latest of its 1: 4.0"):
        show(str(log), "9.9", folder=tmp_path)


# ---------------------------------------------------------------- a real run


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_a_real_run_of_several_turns_is_read_while_it_lives_and_after_it_was_moved(live, tmp_path, capsys):
    run = live(
        "run=gsm8k-grpo",
        "steps=4",
        "watchdog.stall_seconds=600",
        "watchdog.heartbeat_seconds=600",
        recipe=ROOT / "recipes" / "multi_turn.toml",
    )
    async with run.listening():
        await run.until(StepCompleted, 1, 600)
        os.kill(paused := run.pid_of("trainer"), signal.SIGSTOP)  # the run cannot end while it is read
        try:
            living = open_run("gsm8k-grpo", folder=run.folder.parent)  # within an event loop, as in a notebook
            words = ["why", "gsm8k-grpo", "--folder", str(run.folder.parent), "--json"]
            assert await asyncio.to_thread(main, words) == 0
        finally:
            os.kill(paused, signal.SIGCONT)
        assert len(living.steps) >= 1
        limited = json.loads(capsys.readouterr().out)
        assert limited["status"] == "live"
        assert limited["now"], "no heartbeat of the live run"
        assert limited["shares"]["trainer"]["trains"] > 0
    assert await run.ended() == 0
    place = run.folder.rename(tmp_path / "moved")
    read = open_run(place)
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    assert {row["step"]: row["loss"] for row in read.steps} == {
        line["step"]: line["metrics"]["loss"] for line in lines if line["kind"] == "step.completed"
    }
    turns = [row for row in read.interactions if row["prefix"] and row["completion"] is not None]
    assert turns, "no exported episode had a second turn"
    assert next(row for row in read.interactions if row["interaction"] == turns[0]["prefix"])["completion"]
    assert turns[0]["prompt"]
    trained = sum(row["completion_tokens"] for row in read.episodes if row["step"])
    assert trained == sum(read.steps["sampled_tokens"])
    (listed,) = json.loads(printed(list_runs, tmp_path, as_json=True))
    sampled = [row["accuracy"] for row in read.evaluations if row["mode"] == "sampled"]
    assert listed["held_out"] == [sampled[0], sampled[-1]]
    page = printed(show, str(place), turns[0]["episode"], folder=tmp_path)
    assert f"call 2 of {sum(row['episode'] == turns[0]['episode'] for row in read.interactions)}" in page
    assert "gsm8k" not in read.notice
    traces = [trace_episode(read, row["episode"]) for row in read.episodes if row["step"]]
    assert sum(sum(call.trained) for trace in traces for call in trace.calls) == sum(read.steps["trained_tokens"])
    for call in (call for trace in traces for call in trace.calls):
        assert len(call.tokens) == call.completion_tokens
        assert all(call.tokens), "a token without text"
