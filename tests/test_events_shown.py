"""What happens once in a run is told wherever a person looks: the live picture, plain lines, `metrics.jsonl`, the summary."""

from __future__ import annotations

import io
import json

import pytest
import story
from rich.console import Console

from areal_actors.actors.metrics import Metrics
from areal_actors.display.summary import summary
from areal_actors.display.view import RunView, plain_line
from areal_actors.messages import BestCheckpointChosen, EngineMismatch, GroupsUsedUp, RunFinished, RunStopping, TrainingFellBack

BEST = BestCheckpointChosen(folder="runs/r/checkpoints/step-30", step=30, weight_version=30, metric="greedy", value=0.94)
USED_UP = GroupsUsedUp(reason="batcher.filter has dropped 160 groups since the last batch")
FELL_BACK = TrainingFellBack(step=7, weight_version=4, reason="rank 1 died: killed by signal 9\nits log is in logs/trainer-0.1")

MISMATCH = EngineMismatch(
    step=7,
    worker="inference_worker-1",
    kl=0.214,
    vetoed_share=0.02,
    tokens=400,
    steps=3,
    recycle=True,
    episode="12.3",
    position=61,
    token=44,
    recorded_logprob=-4.0,
    trainer_logprob=-1.5,
)
MISMATCH_TOLD = (
    "inference_worker-1: KL 0.214 nats per token and 2.0% of tokens vetoed, 3 steps in a row, worst token 44 of episode 12.3 "
    "(engine -4.000, trainer -1.500); its engine is recycled"
)


def view_of(*messages):
    view = RunView()
    for after, message in enumerate(messages):
        view.heard(story.sealed(message, after))
    return view


def printed(picture):
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(picture)
    return " ".join(console.export_text().replace("│", " ").split())


def test_the_best_checkpoint_so_far_stands_in_the_picture_and_in_the_summary():
    view = view_of(story.STARTED, BestCheckpointChosen(folder="step-20", step=20, weight_version=20, metric="greedy", value=0.9), BEST)
    told = "step 30, greedy 0.940 on held-out data: runs/r/checkpoints/step-30"
    assert f"best {told}" in printed(view.render())
    assert f"best checkpoint {told}" in printed(summary(view.state, []))
    assert "step-20" not in printed(view.render())


def test_why_a_run_is_stopping_is_shown_until_it_is_over():
    view = view_of(story.STARTED, USED_UP, RunStopping(reason=f"{USED_UP.reason}; ended"))
    assert f"stopping {USED_UP.reason} " in printed(view.render())
    view.heard(story.sealed(RunFinished(steps=3, error=f"{USED_UP.reason}; ended after 3 of 40 steps"), 9))
    assert "stopping" not in printed(view.render())
    assert f"ended early: {USED_UP.reason}; ended after 3 of 40 steps" in printed(summary(view.state, []))


def test_a_trainer_that_fell_back_counts_among_the_failures():
    view = view_of(story.STARTED, FELL_BACK)
    told = "1 × trainer fell back to step 4: rank 1 died: killed by signal 9"
    assert told in printed(view.render())
    assert told in printed(summary(view.state, []))


def test_an_engine_that_disagrees_with_the_trainer_is_named_in_the_picture_and_in_the_summary():
    view = view_of(story.STARTED, MISMATCH)
    assert f"1 × engine mismatch: {MISMATCH_TOLD}" in printed(view.render())
    assert f"1 × engine mismatch: {MISMATCH_TOLD}" in printed(summary(view.state, []))


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (BEST, "best checkpoint: step 30, greedy 0.940 on held-out data: runs/r/checkpoints/step-30"),
        (USED_UP, "nothing left to learn from: batcher.filter has dropped 160 groups since the last batch"),
        (FELL_BACK, "trainer fell back to step 4 and takes the steps to 7 again: rank 1 died: killed by signal 9"),
        (MISMATCH, f"engine mismatch: {MISMATCH_TOLD}"),
    ],
)
async def test_each_has_a_plain_line_and_a_line_in_the_metrics_file(say, tmp_path, message, line):
    assert plain_line(message) == line
    await say(Metrics(tmp_path / "metrics.jsonl"), message)
    (written,) = (json.loads(row) for row in (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert written["kind"] == message.subject
    assert {name: written[name] for name in message.__struct_fields__} == {
        name: getattr(message, name) for name in message.__struct_fields__
    }
