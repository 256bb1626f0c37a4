"""The end of a summary: files that are there, and commands that work as they are printed."""

import os
import shlex
import sys
from pathlib import Path

import pytest

from areal_actors.cli.arguments import parsed
from areal_actors.core.programs import program
from areal_actors.run.next_commands import next_commands
from areal_actors.run.run_folder import RunFolder


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("first", "second"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    (tmp_path / "runs" / "first" / "summary.txt").write_text("")
    (tmp_path / "runs" / "first" / "metrics.jsonl").write_text("")
    return tmp_path / "runs"


def test_the_commands_exist(runs):
    (runs / "second" / "metrics.jsonl").write_text("")
    for command in dict(next_commands(RunFolder(runs / "second"), "runs", "", has_episodes=True))["next"].splitlines():
        assert parsed(shlex.split(command)[1:]).do


def test_files_and_commands_of_the_only_run(runs):
    rows = dict(next_commands(RunFolder(runs / "first"), "runs", "checkpoints/step-40", has_episodes=True))
    areal = program("areal")
    assert rows["files"] == "runs/first: summary.txt, metrics.jsonl"
    assert rows["next"].splitlines() == [f"{areal} show first", f"{areal} track first --to tensorboard"]
    assert rows["weights"].startswith("model=runs/first/checkpoints/step-40 ")


def test_another_run_is_there_to_compare_with(runs):
    (runs / "second" / "metrics.jsonl").write_text("")
    rows = dict(next_commands(RunFolder(runs / "second"), "runs", "", has_episodes=True))
    assert f"{program('areal')} compare first second" in rows["next"].splitlines()
    assert "weights" not in rows


def test_another_folder_and_examples(runs):
    runs.rename(runs.with_name("my runs"))
    rows = dict(next_commands(RunFolder(Path("my runs") / "first"), "my runs", "", has_episodes=False))
    assert rows["next"].splitlines() == [f"{program('areal')} track first --folder 'my runs' --to tensorboard"]


def test_a_program_is_named_as_it_can_be_started(tmp_path, monkeypatch):
    here = Path(sys.executable).parent
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(here))
    assert program("areal") == "areal"
    monkeypatch.setenv("PATH", "/nowhere")
    assert (tmp_path / program("areal")).resolve() == (here / "areal").resolve()
    assert os.access(tmp_path / program("areal"), os.X_OK)
    assert program("no-such-program") == "no-such-program"
