"""A file of stages: each a run, with the weights or the episodes of earlier ones; it goes on where it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import msgspec
import pytest
from support.live_run import PATIENT, ROOT, SMALL

from areal_actors.cli import main
from areal_actors.core.errors import RecipeError
from areal_actors.stages.stage_file import has_stages, read_stages

STAGES = """
run = "two"

[[stage]]
name = "sample"
recipe = "a.toml"
settings = { steps = 2, trainer.optimizer.lr = 0, task = { agent = "x.py:A" } }

[[stage]]
name = "imitate"
recipe = "b.toml"
model_of = "sample"
episodes_of = "sample"
best = 2
"""


def write_stages(folder, text=STAGES):
    for name in ("a.toml", "b.toml"):
        (folder / name).write_text("steps = 1\n")
    (folder / "stages.toml").write_text(text)
    return folder / "stages.toml"


def test_a_stage_is_a_recipe_with_settings(tmp_path):
    path = write_stages(tmp_path)
    assert has_stages(path)
    assert not has_stages(tmp_path / "a.toml")
    assert not has_stages(tmp_path / "missing.toml")
    stages = read_stages(path, ["run=mine", "sample.steps=5", "imitate.trainer.batch_size=4"])
    first, second = stages.stage
    assert stages.words(first, tmp_path) == [
        str(tmp_path / "a.toml"),
        "steps=5",
        "trainer.optimizer.lr=0",
        "task.agent=x.py:A",
        "run=mine-sample",
        "folder=runs",
    ]
    assert "trainer.batch_size=4" in stages.words(second, tmp_path)
    assert (second.model_of, second.episodes_as, second.best) == ("sample", "sft", 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('model_of = "sample"', 'model_of = "later"'), "`model_of` names `later`; stages before it: `sample`"),
        (('name = "imitate"', 'name = "sample"'), "two stages are called `sample`"),
        (('"b.toml"', '"c.toml"'), "there is no recipe c.toml beside this file"),
        (("best = 2", "best = 0"), "best"),
        (("best = 2", "bets = 2"), "bets"),
        (('run = "two"', 'run = "Two!"'), "run"),
    ],
)
def test_a_wrong_file_is_refused_before_anything_starts(tmp_path, change, message):
    path = write_stages(tmp_path, STAGES.replace(*change))
    with pytest.raises(RecipeError, match=message):
        read_stages(path, [])


SERVED = """
run = "day"

[[stage]]
name = "seed"
recipe = "a.toml"

[[stage]]
name = "day"
command = "serve"
recipe = "b.toml"
model_of = "seed"
users = "users.py"
user_arguments = ["9"]

[[stage]]
name = "night"
command = "learn"
sessions_of = "day"
reward = "rule.py:reward"
settings = { steps = 3 }
"""


def test_a_stage_serves_users_and_another_learns_from_their_sessions(tmp_path):
    (tmp_path / "users.py").touch()
    write_stages(tmp_path, SERVED)
    stages = read_stages(tmp_path / "stages.toml", ["folder=kept"])
    seed, day, night = stages.stage
    assert stages.run_of("day") == "day-day-serve"
    assert stages.words(day, tmp_path) == [str(tmp_path / "b.toml"), "run=day-day", "folder=kept"]
    assert stages.words(night, tmp_path) == [
        "kept/day-day-serve",
        "--folder",
        "kept",
        "--reward",
        str(tmp_path / "rule.py:reward"),
        "steps=3",
        "run=day-night",
        "folder=kept",
    ]
    assert stages.run_of(seed.name) == "day-seed"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('users = "users.py"', ""), "stage `day`: `users` is missing"),
        (('users = "users.py"', 'users = "none.py"'), "there is no users none.py"),
        (('sessions_of = "day"', ""), "stage `night`: `sessions_of` is missing"),
        (
            ('sessions_of = "day"', 'sessions_of = "dusk"'),
            "`sessions_of` names `dusk`; stages before it: `seed`, `day`",
        ),
    ],
)
def test_a_stage_of_users_without_what_it_needs_is_refused(tmp_path, change, message):
    (tmp_path / "users.py").touch()
    write_stages(tmp_path, SERVED.replace(*change))
    with pytest.raises(RecipeError, match=message):
        read_stages(tmp_path / "stages.toml", [])


def test_a_setting_without_its_stage_is_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"begins with its name: `sample\.`, `imitate\.`"):
        read_stages(write_stages(tmp_path), ["steps=3"])


def test_check_reads_the_recipe_of_every_stage(capsys):
    recipe = str(ROOT / "recipes/rejection_sampling.toml")
    assert main(["check", recipe]) == 0
    assert "imitate: run 'rejection-sampling-imitate', sft, 60 steps; model of sample, episodes of sample as sft" in (
        capsys.readouterr().err
    )
    assert main(["check", recipe, "imitate.stepps=3"]) != 0
    assert "stage `imitate`: override `stepps=3`: `stepps` is not a setting" in capsys.readouterr().err


def test_a_run_that_learns_nothing_is_named_as_such(capsys):
    assert main(["check", str(ROOT / "recipes/gsm8k_grpo.toml"), "profile=embedded", "trainer.optimizer.lr=0"]) == 0
    assert "nothing is learned; the run samples and scores only" in capsys.readouterr().out


LIVE = f"""
run = "live"

[[stage]]
name = "sample"
recipe = {json.dumps(str(ROOT / "recipes/gsm8k_grpo.toml"))}
settings = {{ steps = 2, trainer.optimizer.lr = 0, evaluation.baseline = "none" }}

[[stage]]
name = "imitate"
recipe = {json.dumps(str(ROOT / "recipes/sft.toml"))}
model_of = "sample"
episodes_of = "sample"
least_reward = 0
settings = {{ steps = 400, task.held_out = 2, evaluation.tasks = 2, trainer.batch_size = 2 }}
"""


def start(folder):
    small = [f"sample.{setting}" for setting in SMALL]
    command = [sys.executable, "-m", "areal_actors", "run", "stages.toml", *small, f"folder={folder / 'runs'}"]
    with (folder / "output.txt").open("a") as output:
        return subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, start_new_session=True)


@pytest.mark.long
@pytest.mark.timeout(4 * PATIENT)
def test_stages_go_on_where_they_were_killed(tmp_path):
    (tmp_path / "stages.toml").write_text(LIVE)
    process = start(tmp_path)
    metrics = tmp_path / "runs/live-imitate/metrics.jsonl"
    end = time.monotonic() + PATIENT
    while not (metrics.is_file() and '"step.completed"' in metrics.read_text()):
        assert process.poll() is None, (tmp_path / "output.txt").read_text()
        assert time.monotonic() < end
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(3)  # until the run's processes have noticed
    assert start(tmp_path).wait(PATIENT) == 0, (tmp_path / "output.txt").read_text()
    printed = (tmp_path / "output.txt").read_text()
    assert printed.count("sample: run 'live-sample' starts") == 1
    assert "sample: run 'live-sample' has finished already" in printed
    assert "imitate: run 'live-imitate' is resumed" in printed
    rows = [json.loads(line) for line in (tmp_path / "runs/live-sample/sft-for-imitate.jsonl").read_text().splitlines()]
    assert rows
    recipe = msgspec.json.decode((tmp_path / "runs/live-imitate/recipe.json").read_bytes())
    assert recipe["model"].endswith("live-sample/checkpoints/step-2")
    assert start(tmp_path).wait(PATIENT) == 0
    assert (tmp_path / "output.txt").read_text().count("has finished already") == 3
