"""`areal-actors init`: each kind runs at once, in any folder."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from areal_actors.cli import main
from areal_actors.reader import open_run

ROOT = Path(__file__).parent.parent
KINDS = ("text", "tools", "environment", "node")
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
EACH = pytest.mark.parametrize("kind", [*KINDS[:3], pytest.param("node", marks=needs_node)])


def started(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of this interpreter in a folder."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=1200, check=False
    )


@EACH
def test_what_is_written_is_valid_and_passes_its_own_tests(tmp_path, monkeypatch, capsys, kind):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "Mein Agent", "--kind", kind]) == 0
    printed = capsys.readouterr().out
    assert "check 'Mein Agent/recipe.toml'" in printed
    assert main(["check", "Mein Agent/recipe.toml", "--devices", "0", "--json"]) == 0
    recipe = json.loads(capsys.readouterr().out)["recipe"]
    assert (recipe["run"], recipe["task"]["dataset"], recipe["algorithm"]["name"]) == (
        "mein-agent",
        "Mein Agent/tasks.jsonl",
        "grpo",
    )
    tested = started(tmp_path / "Mein Agent", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert tested.returncode == 0, tested.stdout
    assert "passed" in tested.stdout


def test_a_folder_that_exists_is_left_as_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert main(["init", "mine"]) == 1
    assert "mine: exists already; name another folder" in capsys.readouterr().err
    assert list((tmp_path / "mine").iterdir()) == []
    assert main(["init", "mine/../***"]) == 1
    assert "by letters a to z and digits; found none" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.timeout(1800)
@EACH
def test_what_is_written_learns(tmp_path, kind):
    assert started(tmp_path, "-m", "areal_actors", "init", "mine", "--kind", kind).returncode == 0
    done = started(tmp_path, "-m", "areal_actors", "run", "mine/recipe.toml")
    assert done.returncode == 0, done.stderr
    run = open_run("mine", folder=tmp_path / "runs")
    sampled = [row["reward_mean"] for row in run.evaluations if row["mode"] == "sampled"]
    assert sampled[0] < 0.4
    assert sampled[-1] > 0.7
