"""The recipe of a model with vision: its pictures, its model, and a run of two steps to the token."""

from __future__ import annotations

import asyncio
import io
import runpy

import pytest
import torch
from PIL import Image
from support.live_run import ROOT

from areal_actors.cli import main
from areal_actors.core.devices import CudaDevices
from areal_actors.messages import StepCompleted, TrajectoryExported
from areal_actors.recipe.load import load
from areal_actors.vision.files import ImageFolder

RECIPE = ROOT / "recipes" / "vision.toml"


@pytest.fixture(scope="module")
def digits():
    return runpy.run_path(str(ROOT / "agents" / "digits.py"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The recipe's model after two of its supervised steps."""
    folder, threads = tmp_path_factory.mktemp("vision") / "digits", torch.get_num_threads()
    runpy.run_path(str(RECIPE.with_suffix(".py")))["make_model"](folder, 0, steps=2)
    torch.set_num_threads(threads)
    return folder


def test_a_picture_follows_from_its_task_and_is_in_one_split_only(digits):
    tasks = digits["tasks"]()
    drawn = [digits["draw_digit"](task["question"], task["answer"]) for task in tasks["test"]]
    assert drawn[0] == digits["draw_digit"](tasks["test"][0]["question"], tasks["test"][0]["answer"])
    assert len(set(drawn)) == len(drawn)
    assert {Image.open(io.BytesIO(png)).size for png in drawn} == {(32, 32)}
    assert not set(drawn) & {digits["draw_digit"](task["question"], task["answer"]) for task in tasks["train"]}
    assert {task["answer"] for task in tasks["test"]} == set("0123456789")
    assert digits["reward"]({"answer": "7"}, " 7") == 1
    assert digits["reward"]({"answer": "7"}, "17") == 0


def test_the_recipe_has_a_profile_for_both_kinds_of_machine(model, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert load([RECIPE], [f"model={model}"], CudaDevices(0, "none")).profile == "embedded"
    chosen = load([RECIPE], [], CudaDevices(1, "one"))
    assert (chosen.profile, chosen.recipe.model) == ("cuda", "Qwen/Qwen2.5-VL-3B-Instruct")


@pytest.mark.slow
async def test_two_steps_are_trained_on_the_tokens_and_pictures_that_were_sampled(live, model, capsys):
    run = live("run=gsm8k-grpo", "steps=2", f"model={model}", "trainer.batch_size=2", recipe=RECIPE)
    assert await run.ended() == 0, run.output()
    assert "different tasks are the same" not in run.output()
    events = [event for _, event in await run.log()]
    exported = [event.trajectory for event in events if isinstance(event, TrajectoryExported)]
    steps = [event.metrics for event in events if isinstance(event, StepCompleted)]
    assert [metrics["train_infer_logprob_diff_max"] < 1e-4 for metrics in steps] == [True, True]
    images = [image for trajectory in exported for call in trajectory.interactions for image in call.images]
    assert len(images) == len(exported) > 8
    assert all(ImageFolder.of_run(run.folder).holds(image.digest) for image in images)
    assert await asyncio.to_thread(main, ["audit", "gsm8k-grpo", "--folder", str(run.folder.parent)]) == 0
    assert "audit: 0 lost, 0 twice, 3 of 3 versions compared" in capsys.readouterr().out
