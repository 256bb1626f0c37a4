"""Settings for data, evaluation and checkpoints are checked before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError
from areal_actors.recipe.load import load
from areal_actors.recipe.plan import plan

ROOT = Path(__file__).parent.parent
NO_CUDA = CudaDevices(0, "no CUDA device: libcuda.so.1 not found")


@pytest.fixture
def read(monkeypatch, tmp_path):
    """The main recipe with these settings, in a folder with a few files."""
    (tmp_path / "agents").symlink_to(ROOT / "agents")
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "a.jsonl").write_text('{"question": "q", "answer": "a"}\n')
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("no rows")
    (tmp_path / "table.parquet").write_bytes(b"")
    (tmp_path / "filters.py").write_text("def keep(rewards):\n    return True\n")
    monkeypatch.chdir(tmp_path)
    return lambda *settings: load([ROOT / "recipes" / "gsm8k_grpo.toml"], settings, NO_CUDA).recipe


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (["task.dataset=empty"], 'found "empty", but there is no such file'),
        (["task.dataset=shards/*.parquet"], 'found "shards/*.parquet", but there is no such file'),
        (["task.dataset=notes.txt"], 'found "notes.txt"; known: arithmetic'),
        (["task.held_out=notes.txt"], 'found "notes.txt"; write how many tasks to hold out'),
        (
            ["task.dataset=filters.py:row"],
            '`task.dataset`: found "filters.py:row", but filters.py has no function `row`',
        ),
        (["task.dataset=gone.py:rows"], 'found "gone.py:rows", but there is no file gone.py to read'),
        (["batcher.filter=signals"], 'found "signals"; write the function as `path.py:Name`, as in `filters.py:keep`'),
        (["batcher.filter=filters.py:keeps"], "but filters.py has no function `keeps`; did you mean `keep`?"),
        (["batcher.dynamic_sampling=true", "algorithm.group_size=1"], "a group of 1 has no two rewards that differ"),
        (
            ["checkpoint.keep_best=greedy"],
            '`checkpoint.keep_best`: found "greedy", but evaluation.periodic_mode is "sampled"',
        ),
        (["checkpoint.keep_best=loss"], 'found "loss", but this run evaluates answers; write "greedy" or "sampled"'),
        (
            ["checkpoint.keep_best=sampled", "evaluation.tasks=0"],
            "but nothing is evaluated; write evaluation.tasks above 0",
        ),
        (["checkpoint.keep_best=best"], 'found "best", expected one of "", "greedy", "loss", "sampled"'),
    ],
)
def test_what_does_not_fit_is_refused_with_what_to_write(read, settings, complaint):
    with pytest.raises(RecipeError) as caught:
        read(*settings)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        ["task.dataset=shards"],
        ["task.dataset=shards/*.jsonl", 'task.columns={ question = "problem" }'],
        ["task.dataset=table.parquet", "task.held_out=shards"],
        ["task.dataset=owner/name:config"],
        ["batcher.dynamic_sampling=true", "batcher.dynamic_batch=true"],
        ["batcher.filter=filters.py:keep"],
        ["checkpoint.keep_best=sampled", "checkpoint.keep_last=1"],
        ["checkpoint.keep_best=greedy", "evaluation.periodic_mode=greedy"],
        ["checkpoint.keep_best=greedy", "evaluation.every_steps=0"],
    ],
)
def test_what_fits_is_taken(read, settings):
    assert read(*settings)


def test_a_dataset_whose_library_is_missing_is_an_error_with_the_install_command(read, monkeypatch):
    monkeypatch.setattr("areal_actors.tasks.recipe_check.is_installed", lambda library: library != "datasets")
    for spec in ("table.parquet", "owner/name"):
        with pytest.raises(
            RecipeError, match=r"the `datasets` library is not installed; pip install 'areal-actors\[data\]'"
        ):
            read(f"task.dataset={spec}")
    assert read("task.dataset=shards")


def test_the_plan_names_the_source_of_tasks_and_the_kept_checkpoints(read):
    plan_text = "\n".join(
        plan(read("task.dataset=shards", "evaluation.periodic_mode=greedy", "checkpoint.keep_best=greedy"))
    )
    assert "read from shards; held out: 200" in plan_text
    assert "64 of them, greedy, every 10 steps" in plan_text
    assert "every 20 steps and at the end, the last 2 kept; and the best of those evaluated (greedy)" in plan_text
    assert "owner/name, downloaded from the Hugging Face hub" in "\n".join(plan(read("task.dataset=owner/name")))
