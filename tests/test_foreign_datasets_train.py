"""A model, a data set in the shape in which others publish it, and a reward train without a line of code."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from support.foreign_datasets import DATASETS

RECIPE = """\
run = "foreign"
steps = 1
model = "embedded"
[task]
dataset = "{name}"
reward = "gsm8k"
system_prompt = "Solve the problem."
held_out = 4
{settings}
[algorithm]
name = "grpo"
group_size = 4
[trainer]
batch_size = 4
optimizer.lr = 1e-4
[sampling]
max_tokens = 48
[generation]
max_model_len = 256
[evaluation]
tasks = 0
"""


def areal(folder, *words):
    command = [sys.executable, "-m", "areal_actors", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=600)


def prepare(folder, shape):
    name, body, settings, _ = DATASETS[shape]
    (folder / name).write_bytes(body)
    (folder / "recipe.toml").write_text(RECIPE.format(name=name, settings=settings))


@pytest.mark.long
@pytest.mark.parametrize("shape", DATASETS)
def test_a_published_shape_trains_without_code_and_names_the_columns(tmp_path, shape):
    prepare(tmp_path, shape)
    ended = areal(tmp_path, "run", "recipe.toml")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    recognised = DATASETS[shape][3]
    assert (f"columns recognised: {recognised}" in ended.stderr) == bool(recognised)
    lines = map(json.loads, (tmp_path / "runs/foreign/metrics.jsonl").read_text().splitlines())
    (step,) = [line["metrics"] for line in lines if line["kind"] == "step.completed"]
    assert (step["sampled_tokens"] > 0, step["ended_by_model"]) == (True, 0.0)


@pytest.mark.slow
def test_check_looks_at_every_row_of_the_data(tmp_path):
    prepare(tmp_path, "numbers")
    rows = [{"question": f"What is {n}+{n}?", "answer": 2 * n} for n in range(40)]
    rows += [{"question": "What is 0+0?", "answer": 0}, {"question": "Why?", "answer": "unreadable"}]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    checked = areal(tmp_path, "check", "recipe.toml", "--data", "task.held_out=0", "task.unreadable_references=warn")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "42 tasks to train on, 0 held out" in checked.stdout
    assert "1 tasks have the prompt of an earlier one, and count that much more: rows-40" in checked.stdout
    assert re.search(
        r"1 references cannot be read, and their tasks have no reward: rows-41; the first: .*unreadable", checked.stdout
    )
