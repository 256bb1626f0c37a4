"""Judges in recipes: problems by name with their remedy, and `what-if` over a recorded run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.judge_server import judge_server

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError
from areal_actors.recipe.load import load
from areal_actors.recipe.source import read_override
from areal_actors.replay.what_if import what_if

RECORDED = Path(__file__).parent / "recordings" / "log-2.xz"
BASE = 'run = "r"\nsteps = 1\nmodel = "embedded"\ntask.dataset = "arithmetic"\ntask.reward = "judge"\n'


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with judge_server(tmp_path_factory.mktemp("judge")) as running:
        yield running


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ('url = "ftp://x"\nmodel = "m"', '`task.reward_options.url`: found "ftp://x"; write the base URL'),
        ('url = "http://x/v1"', "`task.reward_options.model`: found none; write the name"),
        ('model = "m"', '`task.reward_options.model`: found "m" without a `url`; name the server'),
        (
            'url = "http://x"\nmodel = "m"\nkey_variable = "NOT_SET_HERE"',
            "this variable is not set; export NOT_SET_HERE=…",
        ),
        ('prompt = "none.txt"', "none.txt cannot be read"),
        ('criteria = { reason = "Its reason." }', 'found "reason"; write a word other than `reason`'),
        ("criteria = { style = { weight = 0.0 } }", "found weights of 0 only; give at least one criterion a weight"),
        ("samples = 3", "found 3 with temperature 0, where all are alike; write `temperature = 1.0`"),
        ("min_agreement = 0.7", "found 0.7 without `calibration`; name a file of labelled examples"),
        ('calibration = "none.jsonl"', "there is no such file"),
        ('method = "pairwise"', "a held-out answer has none beside it to be compared with; set evaluation.tasks = 0"),
        ('method = "best"', '`task.reward_options`: `method`: found "best"'),
        ("retrys = 1", "`retrys` is not a setting; did you mean `retries`?"),
    ],
)
def test_a_problem_names_the_field_and_the_remedy(tmp_path, table, complaint):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f"{BASE}[task.reward_options]\n{table}\n")
    with pytest.raises(RecipeError) as raised:
        load([recipe], [], CudaDevices(count=0, reason="none here"))
    assert complaint in str(raised.value)


def test_comparisons_need_one_reward_worker_and_groups(tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'{BASE}task.reward_options.method = "listwise"\nactors.reward_worker.count = 2\n')
    with pytest.raises(RecipeError, match="answers of a group go to several reward workers; set it to 1"):
        load([recipe], [], CudaDevices(count=0, reason="none here"))
    recipe.write_text(f'{BASE}task.reward_options.method = "listwise"\n')
    limits = load([recipe], [], CudaDevices(count=0, reason="none here")).recipe
    assert limits.actors.reward_worker.concurrency >= limits.concurrent_groups() * limits.algorithm.group_size


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("a.b", ("a", "b")),
        ('task.reward_options."judge:q.1".weight', ("task", "reward_options", "judge:q.1", "weight")),
        ("task.judge:q.weight", ("task", "judge:q", "weight")),
    ],
)
def test_keys_of_overrides_may_be_quoted(name, key):
    data = read_override(f"{name}=1").data
    for part in key:
        data = data[part]
    assert data == 1


def test_overrides_without_a_part_of_their_key_are_refused():
    for name in ("", "a.", ".a", "a..b"):
        with pytest.raises(RecipeError, match="found no setting in it"):
            read_override(f"{name}=1")


def test_another_rubric_of_a_recorded_run_is_asked_once_and_other_weights_not_at_all(server, tmp_path, capsys):
    log = tmp_path / "log.xz"
    shutil.copy(RECORDED, log)
    judge = {"url": server.url, "model": "steady", "criteria": {"right": "It is right.", "brief": "It is brief."}}

    def compare(**changes):
        before = server.calls()
        table = "{ " + ", ".join(f"{name} = {_toml(value)}" for name, value in {**judge, **changes}.items()) + " }"
        settings = ["task.reward=judge", f"task.reward_options={table}"]
        assert what_if(str(log), settings, folder=tmp_path, as_json=True) == 0
        bill = json.loads(capsys.readouterr().out)["judges"]
        assert bill["calls"] == server.calls() - before
        return bill["questions"], bill["calls"]

    questions, calls = compare()
    assert questions == calls > 30
    assert compare(aggregate="min") == (questions, 0)
    assert compare(criteria={"right": {"description": "It is right.", "weight": 5.0}, "brief": "It is brief."}) == (
        *(questions, 0),
    )
    assert compare(criteria={"right": "It is quite right.", "brief": "It is brief."}) == (questions, questions)
    compared, asked = compare(method="listwise", criteria={})
    assert compared == asked < questions
    assert compare(method="listwise", criteria={}) == (compared, 0)


def _toml(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_toml(entry)}" for name, entry in value.items()) + " }"
    return json.dumps(value)
