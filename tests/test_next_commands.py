"""The end of a summary: files that are there, and commands that work as they are printed."""

import io
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from areal_actors.cli.arguments import parse_command_line
from areal_actors.core.command import COMMAND
from areal_actors.core.programs import program
from areal_actors.display.run_state import RunState
from areal_actors.display.summary import summary
from areal_actors.folder.next_commands import next_commands, run_command
from areal_actors.folder.run_folder import RunFolder


@pytest.fixture
def tensorboard(tmp_path, monkeypatch):
    """A library of this name, which can be imported."""
    (tmp_path / "libraries" / "tensorboard").mkdir(parents=True)
    (tmp_path / "libraries" / "tensorboard" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "libraries")


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("first", "second"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    (tmp_path / "runs" / "first" / "summary.txt").write_text("")
    (tmp_path / "runs" / "first" / "metrics.jsonl").write_text("")
    return tmp_path / "runs"


@pytest.mark.usefixtures("tensorboard")
def test_the_commands_exist(runs):
    (runs / "second" / "metrics.jsonl").write_text("")
    commands = dict(next_commands(RunFolder(runs / "second"), "runs", "", has_episodes=True))["next"].splitlines()
    verbs = [shlex.split(command.removeprefix(program(COMMAND)))[0] for command in commands]
    assert verbs == ["show", "view", "compare", "export"]
    for command in (*commands, run_command("resume", "second", "runs"), run_command("audit", "second", "runs")):
        assert parse_command_line(shlex.split(command.removeprefix(program(COMMAND)))).do


def test_files_and_commands_of_the_only_run(runs):
    rows = dict(next_commands(RunFolder(runs / "first"), "runs", "checkpoints/step-40", has_episodes=True))
    areal = program(COMMAND)
    assert rows["files"] == "runs/first: summary.txt, metrics.jsonl"
    assert rows["next"].splitlines() == [
        f"{areal} show first",
        f"{areal} view first",
    ], "no tracker is installed"
    assert rows["weights"].startswith("model=runs/first/checkpoints/step-40 ")


def test_another_run_is_there_to_compare_with(runs):
    (runs / "second" / "metrics.jsonl").write_text("")
    rows = dict(next_commands(RunFolder(runs / "second"), "runs", "", has_episodes=True))
    assert f"{program(COMMAND)} compare first second" in rows["next"].splitlines()
    assert "weights" not in rows


def test_another_folder_and_examples(runs):
    runs.rename(runs.with_name("my runs"))
    rows = dict(next_commands(RunFolder(Path("my runs") / "first"), "my runs", "", has_episodes=False))
    areal = program(COMMAND)
    assert rows["files"].startswith("'my runs/first': ")
    assert rows["next"].splitlines() == [
        f"{areal} view first --folder 'my runs'",
    ]


def test_a_program_is_named_as_it_can_be_started(tmp_path, monkeypatch):
    here = Path(sys.executable).parent
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(here))
    assert program(COMMAND) == COMMAND
    monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", "1")
    assert program(COMMAND) == str(here / COMMAND), "the PATH of `uv run` is not that of the shell"
    monkeypatch.delenv("UV_RUN_RECURSION_DEPTH")
    monkeypatch.setenv("PATH", "/nowhere")
    assert program(COMMAND) == shlex.quote(str(here / COMMAND))
    assert os.access(program(COMMAND), os.X_OK)
    assert program("no-such-program") == "no-such-program"
    monkeypatch.chdir(here.parent)
    assert program(COMMAND) == f"{here.name}/areal-actors"
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / COMMAND).symlink_to(here / COMMAND)
    monkeypatch.setenv("PATH", str(tmp_path / "links"))
    assert program(COMMAND) == COMMAND, "as `uv tool install` puts it on the PATH"


def answer_of(command, folder, **environment):
    """Output of a shell for a command that was pasted in this folder; fails if the command does."""
    shell = {name: value for name, value in os.environ.items() if name not in {"AREAL_INVOKED_FROM", "PYTHONPATH"}}
    ended = subprocess.run(
        command, shell=True, cwd=folder, env=shell | environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("place", ["here", "a folder with spaces", "/absolute", "elsewhere"])
def test_pasted_commands_find_the_run_from_where_the_user_stands(tmp_path, monkeypatch, place):
    """`elsewhere`: `just` was called in a folder of the clone, and has changed into the clone."""
    clone, user = tmp_path / "my clone", tmp_path / "my clone"
    runs = {
        "here": "runs",
        "a folder with spaces": "all my runs",
        "/absolute": str(tmp_path / "kept runs"),
        "elsewhere": "runs",
    }[place]
    (folder := clone / runs / "first run").mkdir(parents=True)
    (folder / "recipe.json").write_text("{}")
    clone.mkdir(exist_ok=True)
    monkeypatch.chdir(clone)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    if place == "elsewhere":
        (user := clone / "agents").mkdir()
        monkeypatch.setenv("AREAL_INVOKED_FROM", str(user))
    listed = run_command("runs", "first run", runs).replace(" 'first run'", "")
    assert "first run" in answer_of(listed, user)
    rows = dict(next_commands(RunFolder(folder), runs, "checkpoints/step-4", has_episodes=True))
    for command in (
        *rows["next"].splitlines(),
        *(run_command(verb, "first run", runs) for verb in ("resume", "audit")),
    ):
        assert "usage" in answer_of(f"{command} --help", user)
    shown = answer_of(f"ls -d {rows['files'].rpartition(': ')[0]}", user).strip()
    assert (user / shown).resolve() == folder.resolve()


def test_a_command_is_never_broken_into_lines():
    state = RunState()
    command = f"/a/long/path/to/a/program {'x' * 200} --folder y"
    console = Console(width=60, file=io.StringIO())
    console.print(summary(state, [], following=[("next", f"first\n{command}")]), crop=False)
    assert command in console.file.getvalue()
