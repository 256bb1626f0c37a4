"""A run is found by its name, by its path, and as the latest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from areal_actors.folder.run_folder import find_run


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two runs in `runs`, below the current folder; `second` is the latest."""
    for age, name in enumerate(("first", "second")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "recipe.json").write_text("{}")
        os.utime(tmp_path / "runs" / name / "recipe.json", (age, age))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("run", "name"), [("", "second"), ("first", "first"), ("runs/first", "first"), ("{runs}/second", "second")]
)
def test_a_run_is_found(runs, run, name):
    found, there = find_run(run.format(runs=runs), Path("runs"))
    assert found is not None
    assert found.path == runs / name
    assert there == "runs there: first, second"


def test_a_path_is_found_from_any_folder(runs):
    found, _ = find_run(str(runs / "first"), Path("elsewhere"))
    assert found is not None
    assert found.path == runs / "first"


@pytest.mark.parametrize(
    ("run", "folder", "there"), [("", "elsewhere", "there is no run"), ("third", "runs", "runs there: first, second")]
)
def test_what_is_there_is_listed_where_none_is_found(runs, run, folder, there):
    assert find_run(run, Path(folder)) == (None, there)
