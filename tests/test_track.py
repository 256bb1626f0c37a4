"""`areal-actors export` and `[track]`: points of a run, in order and once each; trackers cannot harm it; with a
library's stand-in."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
import threading
import time

import msgspec
import psutil
import pytest
from support.audit_logs import sound_log
from support.live_run import ROOT
from test_reader import exported_log, run_folder

from areal_actors.cli import main
from areal_actors.core.devices import CudaDevices
from areal_actors.core.module_command import module_command
from areal_actors.core.trackers import TRACKERS, missing_trackers
from areal_actors.folder.run_folder import LOCK, RunFolder
from areal_actors.folder.run_lock import lock_file
from areal_actors.messages import EvaluationCompleted, LossEvaluated, RunFinished, RunResumed
from areal_actors.recipe.load import load
from areal_actors.recipe.run_settings import TrackSettings
from areal_actors.track import run_trackers
from areal_actors.track.follow import follow_file, follow_folder
from areal_actors.track.recipe_check import track_problems

FAKES = ROOT / "tests" / "support" / "fake_trackers"
PATIENCE = 240.0
"""Seconds for what takes a second on an idle machine."""


@pytest.fixture
def fake(monkeypatch):
    """W&B's library is the stand-in, here and in other processes."""
    monkeypatch.syspath_prepend(str(FAKES))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKES), str(ROOT)]))
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)


def received(place):
    """Lines that the stand-in has written."""
    file = place / "fake-wandb.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def logged(place):
    return [line["log"] for line in received(place) if "log" in line]


def steps(place):
    return [(row["step"], row["reward_mean"]) for row in logged(place) if "reward_mean" in row]


def append(place, *rows, end="\n"):
    with (place / "metrics.jsonl").open("a") as file:
        file.write("\n".join(map(json.dumps, rows)) + end)


def step(number, reward, **metrics):
    metrics = {"reward_mean": reward, **metrics}
    return {
        "time": 1.8e9 + number,
        "kind": "step.completed",
        "step": number,
        "metrics": metrics,
        "sequences_checksum": "",
    }


def event(message):
    return {"time": 1.9e9, "kind": message.subject, **msgspec.to_builtins(message)}


def eventually(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# ---------------------------------------------------------------- what is read


def test_points_are_the_steps_and_evaluations_of_the_file(tmp_path):
    place = run_folder(tmp_path, "a", rewards=[0.25, float("nan")], held_out=[0.1, 0.9])
    run = follow_folder(RunFolder(place))
    first, second, *evaluations = run.points()
    assert (first.step, first.metrics, first.time) == (1, {"reward_mean": 0.25}, 1.7e9 + 10)
    assert second.step == 2
    assert math.isnan(second.metrics["reward_mean"])  # null in the file
    assert [(one.step, one.metrics["evaluation/greedy/accuracy"]) for one in evaluations] == [(0, 0.1), (1, 0.9)]
    assert run.status() == ("finished", "")
    assert run.to_tracked_run("p").config["run"] == "a"
    assert list(run.points()) == []


def test_numbers_of_the_reward_function_and_held_out_losses_are_points(tmp_path):
    place = run_folder(tmp_path, "a", finished=False)
    found = {"tasks": 4, "failed": 0, "accuracy": 0.5, "mean_tokens": 3.0, "reward_metrics": {"format": 0.75}}
    append(place, event(EvaluationCompleted(weight_version=7, mode="sampled", **found)))
    append(place, event(LossEvaluated(weight_version=8, examples=4, metrics={"loss": 1.5})))
    sampled, loss = follow_folder(RunFolder(place)).points()
    assert sampled.step == 7
    assert sampled.metrics["evaluation/sampled/reward/format"] == 0.75
    assert (loss.step, loss.metrics) == (8, {"evaluation/loss": 1.5})


def test_a_line_is_read_once_it_is_whole_and_damaged_ones_are_left_out(tmp_path):
    place = run_folder(tmp_path, "a", rewards=[0.5], finished=False)
    run = follow_folder(RunFolder(place))
    append(place, step(2, 0.75), end="")
    assert [point.step for point in run.points()] == [1]
    append(place, "", end="\n{not json\n")
    assert [point.step for point in run.points()] == []  # the line became `{…}""`
    append(place, step(3, 0.5))
    append(place, step(4, 0.25), end="")
    assert [point.step for point in run.points()] == [3]
    assert [point.step for point in run.points(last=True)] == [4]
    assert run.status() == ("interrupted", "")


def test_a_resumed_run_goes_on_with_its_recipe_and_has_no_end_yet(tmp_path):
    place = run_folder(tmp_path, "a", rewards=[0.5], error="the disk is full")
    run = follow_folder(RunFolder(place))
    list(run.points())
    assert run.status() == ("ended early", "the disk is full")
    before = run.to_tracked_run("").id
    append(place, event(RunResumed(recipe={"run": "a", "steps": 9}, reason="", folder="runs/a")))
    list(run.points())
    assert run.finished is None
    assert run.to_tracked_run("").config == {"run": "a", "steps": 9}
    assert run.to_tracked_run("").id == before


def test_an_exported_log_has_the_same_points(tmp_path):
    run = follow_file(exported_log(tmp_path / "a.log", sound_log()))
    assert [(point.step, point.metrics) for point in run.points(last=True)] == [
        (number, {"loss": 0.5}) for number in (1, 2, 3)
    ]
    assert run.status() == ("finished", "")


def test_keys_of_the_recipe_file_are_not_sent(tmp_path):
    place = run_folder(tmp_path, "a", rewards=[0.5])
    (place / "recipe.json").write_text(json.dumps({"run": "a", "gateway": {"admin_key": "hunter2"}}))
    run = follow_folder(RunFolder(place))
    list(run.points())
    assert "hunter2" not in json.dumps(run.to_tracked_run("")._asdict())


# ---------------------------------------------------------------- what is sent


def test_a_finished_run_is_sent_whole_and_a_second_time_only_what_is_new(tmp_path, fake, capsys):
    place = run_folder(tmp_path, "a", rewards=[0.25, 0.75], held_out=[0.1])
    assert main(["export", "a", "--to", "wandb", "--folder", str(tmp_path)]) == 0
    opened, *_, ended = received(place)
    assert opened["init"] | {"config": None} == {
        "project": "areal",
        "name": "a",
        "id": "a-1700000000000",
        "config": None,
        "mode": "offline",
    }
    assert opened["init"]["config"]["trainer"] == {"batch_size": 2}
    assert steps(place) == [(1, 0.25), (2, 0.75)]
    assert [row["step"] for row in logged(place) if "evaluation/greedy/accuracy" in row] == [0]
    assert ended == {"finish": 0, "summary": {"status": "finished", "error": ""}}
    append(place, step(2, 0.75), step(3, 0.5, loss=2.0), event(RunFinished(steps=3, error="interrupted")))
    assert main(["export", "a", "--to", "wandb", "--folder", str(tmp_path), "--project", "mine"]) == 0
    assert steps(place) == [(1, 0.25), (2, 0.75), (3, 0.5)]
    assert received(place)[-1] == {"finish": 1, "summary": {"status": "ended early", "error": "interrupted"}}
    assert "wandb: fake" in capsys.readouterr().out


def test_a_live_run_is_followed_to_its_end(tmp_path, fake):
    place = run_folder(tmp_path, "a", rewards=[0.25], finished=False)
    ended = []
    following = threading.Thread(
        target=lambda: ended.append(main(["export", "a", "--to", "wandb", "--folder", str(tmp_path)])), daemon=True
    )
    with lock_file(place / LOCK):
        following.start()
        eventually(lambda: steps(place) == [(1, 0.25)])
        append(place, step(2, 0.75))
        eventually(lambda: steps(place) == [(1, 0.25), (2, 0.75)])
        append(place, step(3, 0.5))
        append(place, event(RunFinished(steps=3)))
    following.join(PATIENCE)
    assert ended == [0]
    assert steps(place) == [(1, 0.25), (2, 0.75), (3, 0.5)]
    assert received(place)[-1]["summary"]["status"] == "finished"


def test_once_sends_what_a_live_run_has_and_leaves_its_status(tmp_path, fake):
    place = run_folder(tmp_path, "a", rewards=[0.25], finished=False)
    with lock_file(place / LOCK):
        assert main(["export", "a", "--to", "wandb", "--once", "--folder", str(tmp_path)]) == 0
    assert steps(place) == [(1, 0.25)]
    assert received(place)[-1] == {"finish": 0, "summary": {}}


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("to", "answer"), [("wandbb", "no tracker 'wandbb'; did you mean `wandb`?"), (" , ", "known: tensorboard, wandb")]
)
def test_an_unknown_tracker_is_answered_with_the_known(to, answer, tmp_path, capsys):
    assert main(["export", "a", "--to", to, "--folder", str(tmp_path)]) == 1
    assert answer in capsys.readouterr().err


def test_a_missing_library_is_named_with_its_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("areal_actors.core.trackers.find_spec", lambda _: None)
    assert main(["export", "a", "--to", "trackio,mlflow", "--folder", str(tmp_path)]) == 1
    assert "trackio and mlflow are not installed; `pip install trackio mlflow`" in capsys.readouterr().err
    monkeypatch.undo()
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text("#!/bin/sh\necho wandb\n")
    python.chmod(0o755)
    assert main(["export", "a", "--to", "wandb", "--python", str(python), "--folder", str(tmp_path)]) == 1
    assert f"`{python} -m pip install wandb`" in capsys.readouterr().err
    assert main(["export", "a", "--to", "wandb", "--python", str(tmp_path / "none"), "--folder", str(tmp_path)]) == 1
    assert "does not run as a Python interpreter" in capsys.readouterr().err


def test_a_folder_that_a_library_left_is_no_library(tmp_path, monkeypatch):
    (tmp_path / "left_by_a_library").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert missing_trackers(("left_by_a_library", "json"), "") == ["left_by_a_library"]
    monkeypatch.chdir(tmp_path)
    assert missing_trackers(("left_by_a_library", "json"), sys.executable) == ["left_by_a_library"]


def test_a_run_without_events_is_refused(tmp_path, fake, capsys):
    place = run_folder(tmp_path, "a")
    (place / "metrics.jsonl").unlink()
    assert main(["export", "a", "--to", "wandb", "--folder", str(tmp_path)]) == 1
    assert "run 'a' has no events that can be read yet" in capsys.readouterr().err


def test_a_tracker_that_fails_is_named_with_its_error(tmp_path, fake, capsys, monkeypatch):
    monkeypatch.setenv("FAKE_WANDB", "raise")
    run_folder(tmp_path, "a", rewards=[0.25, 0.75])
    assert main(["export", "a", "--to", "wandb", "--folder", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert (
        "tracker wandb: ConnectionError: no route to the cloud; the run is not affected; `areal-actors export a --to"
        " wandb`" in error
    )


def test_settings_are_checked_before_a_run_starts(tmp_path):
    def found(**settings):
        return [f"{'.'.join(key)}: {complaint}" for key, complaint in track_problems(TrackSettings(**settings))]

    assert found() == []
    assert found(to=("tensorbord",)) == ['track.to: found "tensorbord"; did you mean `tensorboard`?']
    assert 'found "wandb" 2 times' in found(to=("wandb", "wandb"))[0]
    assert "there is no interpreter" in found(to=("wandb",), python=str(tmp_path / "python"))[0]
    (program := tmp_path / "program").write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    assert "does not run as a Python interpreter" in found(to=("wandb",), python=str(program))[0]
    program.write_text("#!/bin/sh\necho mlflow\n")
    assert f"but mlflow is not installed in {program}" in found(to=("mlflow",), python=str(program))[0]


# ---------------------------------------------------------------- beside a run


def beside(place, **settings):
    """The recipe of a run in this folder, with these settings of `[track]`."""
    recipe = load(
        [ROOT / "recipes" / "gsm8k_grpo.toml"], ["task.dataset=arithmetic", f"run={place.name}"], CudaDevices(0, "none")
    ).recipe
    recipe = msgspec.structs.replace(recipe, track=TrackSettings(**settings))
    folder = RunFolder(place)
    folder.keep(recipe)
    folder.logs.mkdir(exist_ok=True)
    return recipe, folder


def test_the_rest_of_a_run_is_sent_when_it_ends(tmp_path, fake):
    recipe, folder = beside(
        run_folder(tmp_path, "a", rewards=[0.25], finished=False), to=("wandb",), stop_seconds=PATIENCE
    )

    async def run():
        async with run_trackers.track_run(recipe, folder):
            append(folder.path, step(2, 0.5), event(RunFinished(steps=2)))

    asyncio.run(run())
    assert steps(folder.path) == [(1, 0.25), (2, 0.5)]
    assert received(folder.path)[-1]["summary"]["status"] == "finished"


def test_a_tracker_that_hangs_is_named_and_ends_with_the_run(tmp_path, fake, monkeypatch, capsys):
    monkeypatch.setenv("FAKE_WANDB", "hang")
    recipe, folder = beside(
        run_folder(tmp_path, "a", rewards=[0.25, 0.5], finished=False), to=("wandb",), stop_seconds=1.0
    )

    async def run():
        async with run_trackers.track_run(recipe, folder):
            async with asyncio.timeout(PATIENCE):
                while not steps(folder.path):  # noqa: ASYNC110 - it is in another process
                    await asyncio.sleep(0.05)

    asyncio.run(run())
    assert "tracker wandb: did not take the rest of the run within 1 s and was killed" in capsys.readouterr().err
    assert not psutil.pid_exists(received(folder.path)[0]["pid"])


def test_trackers_whose_process_is_killed_are_named_while_the_run_goes_on(tmp_path, fake, capsys):
    recipe, folder = beside(
        run_folder(tmp_path, "a", rewards=[0.25], finished=False), to=("wandb",), stop_seconds=PATIENCE
    )

    async def run():
        printed = ""
        async with run_trackers.track_run(recipe, folder), asyncio.timeout(PATIENCE):
            while not steps(folder.path):  # noqa: ASYNC110 - it is in another process
                await asyncio.sleep(0.05)
            (process,) = [
                one for one in psutil.Process().children() if "areal_actors.track.process" in " ".join(one.cmdline())
            ]
            process.kill()
            while "trackers wandb: " not in printed:
                await asyncio.sleep(0.05)
                printed += capsys.readouterr().err
        return printed

    printed = asyncio.run(run())
    assert "trackers wandb: their process ended with status -9; the run is not affected; `" in printed
    assert "export a --to wandb" in printed


def test_trackers_end_when_the_run_is_killed(tmp_path, fake):
    _, folder = beside(run_folder(tmp_path, "a", rewards=[0.25], finished=False), to=("wandb",), stop_seconds=PATIENCE)
    process = subprocess.Popen(module_command("areal_actors.track.process", str(folder.path)), stdin=subprocess.PIPE)
    eventually(lambda: steps(folder.path))
    process.stdin.close()  # as the kernel does for a killed launcher
    assert process.wait(PATIENCE) == 0
    assert received(folder.path)[-1] == {"finish": 1, "summary": {"status": "interrupted", "error": ""}}


def test_a_tracker_ends_when_the_process_that_feeds_it_is_killed(tmp_path, fake):
    _, folder = beside(run_folder(tmp_path, "a", rewards=[0.25], finished=False), to=("wandb",))
    process = subprocess.Popen(module_command("areal_actors.track.process", str(folder.path)), stdin=subprocess.PIPE)
    with process:
        eventually(lambda: steps(folder.path))
        process.kill()
    eventually(lambda: not psutil.pid_exists(received(folder.path)[0]["pid"]))
    assert received(folder.path)[-1] == {"finish": 0, "summary": {}}


def test_a_run_without_trackers_starts_no_process(tmp_path, monkeypatch):
    recipe, folder = beside(run_folder(tmp_path, "a"))
    monkeypatch.setattr(asyncio, "create_subprocess_exec", None)

    async def run():
        async with run_trackers.track_run(recipe, folder):
            return True

    assert asyncio.run(run())


def test_senders_import_nothing_but_the_standard_library(tmp_path):
    modules = ["sender", *(f"to_{name}" for name in TRACKERS)]
    program = "import sys; sys.path.insert(0, sys.argv[1]); import " + ", ".join(
        f"areal_actors.track.{name}" for name in modules
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", program, str(ROOT)], check=True)
