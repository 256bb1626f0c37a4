"""The trace of an episode has every sampled token as recorded, and trains what the trainer trained."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.regions import base_environment

from areal_actors import cli
from areal_actors.core.values import Interaction, TokenColumns, Trajectory, pack_ids
from areal_actors.messages import (
    BatchFormed,
    BatchRefused,
    RefusedSequence,
    RunStarted,
    StepCompleted,
    TrajectoryExported,
    TrajectoryRef,
)
from areal_actors.reader import open_run
from areal_actors.reader.records import RecordedBatch
from areal_actors.recipe.recipe import recorded_recipe
from areal_actors.replay.call_tree import tree
from areal_actors.replay.episode_trace import trace_episode
from areal_actors.replay.trace_page import html_page
from areal_actors.replay.trained_columns import trained_columns
from areal_actors.sequences.build import sequences_of
from areal_actors.sequences.credit import Credit
from areal_actors.training.algorithms import AnyAlgorithm
from areal_actors.training.step_columns import ArrayColumn, step_columns
from areal_actors.training.step_data import step_tokens
from areal_bus.recorded import FORMAT_VERSION, read_log

CHROMIUM = os.environ.get("AREAL_CHROMIUM", "") or shutil.which("chromium") or ""
LOG = Path(__file__).parent / "recordings" / f"log-{FORMAT_VERSION}.xz"


@pytest.fixture(scope="module")
def run():
    return open_run(LOG)


def test_every_recorded_token_of_every_episode_is_in_its_trace(run):
    exported = [
        one.open(TrajectoryExported).trajectory for one in read_log(LOG) if one.subject == TrajectoryExported.subject
    ]
    assert len(exported) > 50
    for trajectory in exported:
        found = trace_episode(run, trajectory.episode)
        assert [call.interaction for call in found.calls] == [call.id for call in trajectory.interactions]
        for call, recorded in zip(found.calls, trajectory.interactions, strict=True):
            assert call.token_ids == recorded.completion.ids_array().tolist()
            assert call.logprobs == recorded.completion.logprobs_array().tolist()
            assert call.weight_versions == recorded.completion.versions_array().tolist()
            assert len(call.trained) == len(call.advantages) == len(call.tokens) == len(call.token_ids)
            assert bool(call.untrained) == (not all(call.trained))


def test_the_trained_tokens_and_advantages_of_a_step_are_those_that_the_trainer_reported(run):
    steps = {
        one.open(StepCompleted).step: one.open(StepCompleted)
        for one in read_log(LOG)
        if one.subject == StepCompleted.subject
    }
    assert len(steps) == 4
    for number, completed in steps.items():
        calls = [
            call for row in run.episodes if row["step"] == number for call in trace_episode(run, row["episode"]).calls
        ]
        samples = [[value for value in call.advantages if value is not None] for call in calls]
        assert all(len(own) == sum(call.trained) for own, call in zip(samples, calls, strict=True))
        means = [sum(own) / len(own) for own in samples if own]
        assert max(means) == pytest.approx(completed.metrics["advantage_max"], abs=1e-6)
        assert min(means) == pytest.approx(completed.metrics["advantage_min"], abs=1e-6)
        assert sum(sum(call.trained) for call in calls) == completed.metrics["trained_tokens"]


def call(name, parent="", ids=(5, 6), version=1, *, trained=True):
    columns = TokenColumns.of(ids, [-0.5] * len(ids), [version] * len(ids))
    return Interaction(
        id=name,
        parent=parent,
        prefix=parent,
        prompt_suffix=pack_ids([1, 2]),
        completion=columns,
        finish_reason="stop",
        trained=trained,
    )


@pytest.fixture(scope="module")
def recipe():
    return recorded_recipe(next(read_log(LOG)).open(RunStarted).recipe)


def batch_of(*trajectories, oldest_version=0, refused=()):
    refs = tuple(TrajectoryRef(episode=one.episode, sequence=number) for number, one in enumerate(trajectories))
    event = BatchFormed(
        step=3,
        groups=(refs,),
        oldest_version=oldest_version,
        trained_trajectories=2,
        trained_tokens=8,
        dropped_trajectories=0,
        dropped_tokens=0,
    )
    left_out = BatchRefused(step=3, sequences=refused, trained_sequences=1) if refused else None
    return RecordedBatch(event, 9, {}, left_out), dict(enumerate(trajectories))


def exported(episode, reward, *calls):
    return Trajectory(episode=episode, group="0", attempt=1, task="t", reward=reward, interactions=calls)


def test_a_call_that_two_paths_share_is_trained_once_and_untrained_ones_have_no_advantage(recipe):
    first = exported("0.0", 1.0, call("a"), call("b", "a"), call("c", "a"), call("d", "c", trained=False))
    found = trained_columns(*batch_of(first, exported("0.1", 0.0, call("e", version=0)), oldest_version=1), recipe)
    assert found.without_advantages == ""
    masks = {name: mask.tolist() for (_, name), (mask, _) in found.by_call.items()}
    assert masks["a"] == masks["b"] == masks["c"] == [True, True]
    assert masks["e"] == [False, False]
    assert not masks.get("d", [False])[0]
    advantages = {name: values.tolist() for (_, name), (_, values) in found.by_call.items()}
    assert advantages["a"] == advantages["b"] == advantages["c"]
    assert all(value > 0 for value in advantages["a"])
    assert all(math.isnan(value) for value in advantages["e"])


def test_what_the_trainer_refused_is_not_trained(recipe):
    refused = (RefusedSequence(episode="0.0", sequence=0, cause="context: 9 tokens"),)
    batch = batch_of(exported("0.0", 1.0, call("a")), exported("0.1", 0.0, call("b")), refused=refused)
    found = trained_columns(*batch, recipe)
    assert ("0.0", "a") not in found.by_call
    assert found.by_call["0.1", "b"][0].all()


def test_a_base_install_without_torch_prints_the_advantages_of_an_episode(run):
    row = next(row for row in run.episodes if row["step"])
    words = [sys.executable, "-m", "areal_actors", "show", "--trace", str(LOG), row["episode"], "--json"]
    done = subprocess.run(words, env=base_environment(), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert any(value is not None for call in json.loads(done.stdout)["calls"] for value in call["advantages"])


OPTIONS = (
    {"name": "grpo"},
    {
        "name": "grpo",
        "normalize_advantages": True,
        "shaping": {"bias": -0.25, "scale": 2.0, "clip": 1.0, "truncated": "mask"},
    },
    {"name": "dapo", "overlong": {"longest": 4, "buffer": 3}},
    *({"name": name} for name in ("dr_grpo", "gspo", "cispo", "sapo", "rloo", "lite_ppo")),
    {"name": "lite_ppo", "std_around": "batch"},
    {"name": "reinforce_plus_plus"},
    {"name": "reinforce_plus_plus", "baseline": "group"},
)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, list(options.values())[:2])))
def test_advantages_without_torch_are_those_of_tensors(options):
    algorithm = msgspec.convert(options, AnyAlgorithm)
    trajectories = []
    for group in range(3):
        for member in range(4):
            calls = [
                call(f"{name}", ids=tuple(range(2 + (group * member + place) % 4)))
                for place, name in enumerate("abc"[: 1 + member % 3])
            ]
            calls[-1] = msgspec.structs.replace(calls[-1], finish_reason="length" if member == group else "stop")
            reward = 0.1 if group == 0 else [0.0, 1.0, 0.1, 0.7][member]
            trajectories.append((group, exported(f"{group}.{member}", reward, *calls)))
    rows = [row for group, one in trajectories for row in sequences_of(one, group, 0, Credit())]
    without = algorithm.advantages(step_columns(rows, 3, ArrayColumn.of))
    tensors = algorithm.advantages(step_tokens(rows, 3))
    assert np.asarray(without.tokens).tolist() == pytest.approx(tensors.tokens.tolist(), rel=1e-6, abs=1e-9)
    assert len(set(tensors.tokens.tolist())) > 2
    assert (without.kept is None) == (tensors.kept is None)
    if tensors.kept is not None:
        assert np.asarray(without.kept).tolist() == tensors.kept.tolist()
        assert not tensors.kept.all()
    assert without.metrics == pytest.approx(tensors.metrics)


def test_a_tree_goes_on_at_its_depth_and_branches_are_deeper():
    parents = {"a": "", "b": "a", "c": "b", "d": "a", "e": "d", "f": "", "g": "missing"}
    assert list(tree(parents)) == [("a", 0), ("b", 0), ("c", 0), ("d", 1), ("e", 1), ("f", 0), ("g", 0)]


def test_the_command_prints_tokens_or_json(run, capsys):
    row = next(row for row in run.episodes if row["step"] and row["reward"])
    assert cli.main(["show", "--trace", str(LOG), row["episode"]]) == 0
    printed = capsys.readouterr().out
    assert f"trained in step {row['step']}" in printed
    assert f"{row['episode']} ← {row['reward']:g}" in printed
    assert "advantage" in printed
    assert cli.main(["show", "--trace", str(LOG), row["episode"], "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["episode"], data["step"]) == (row["episode"], row["step"])
    assert data["calls"][0]["token_ids"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["no-such"], "has no ended episode 'no-such'; `areal-actors show"),
        (["0.0", "--attempt", "7"], "has no ended attempt 7; it has 1"),
        (["0.0", "--html", "no-such-folder/page.html"], "cannot be written: No such file"),
    ],
)
def test_what_is_not_there_is_named(words, sentence, capsys):
    assert cli.main(["show", "--trace", str(LOG), *words]) == cli.FAILED
    assert sentence in capsys.readouterr().err


def test_an_algorithm_that_needs_a_model_has_no_advantages_but_its_tokens(recipe):
    data = {"algorithm": {"name": "ppo"}}
    other = recorded_recipe({**next(read_log(LOG)).open(RunStarted).recipe, **data})
    found = trained_columns(*batch_of(exported("0.0", 1.0, call("a")), exported("0.1", 0.0, call("b"))), other)
    assert "needs" in found.without_advantages
    assert found.by_call["0.0", "a"][0].all()


def test_text_of_a_model_cannot_end_the_script_of_the_page(run):
    row = next(row for row in run.episodes if row["step"])
    page = html_page(trace_episode(run, row["episode"]), {"task": "</script><script>alert(1)</script><!--"}, [])
    assert "</script><script>alert" not in page
    assert "<!--" not in page.replace("<!doctype", "")


@pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed: `apt install chromium`")
def test_a_browser_shows_every_token_without_an_error_or_another_host(run, tmp_path):
    row = next(row for row in run.episodes if row["step"] and row["reward"])
    page = tmp_path / "page.html"
    assert cli.main(["show", "--trace", str(LOG), row["episode"], "--html", str(page)]) == 0
    options = (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        f"--user-data-dir={tmp_path / 'browser'}",
    )
    done = subprocess.run(
        [CHROMIUM, *options, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=600, check=True
    )
    shown = re.findall(r'<span class="token[^>]*style="([^"]*)"', done.stdout)
    assert len(shown) == sum(len(call.token_ids) for call in trace_episode(run, row["episode"]).calls)
    assert all("background" in style for style in shown), "an advantage that is not coloured"
    assert "CONSOLE" not in done.stderr, done.stderr
    assert not re.search(r'(?:src|href)="', done.stdout)
