"""Displays of a run that learns from examples: the same view, line and summary, of losses instead of rewards."""

from __future__ import annotations

import io

from matplotlib.image import imread
from rich.console import Console
from support import story

from areal_actors.core.watchdog_settings import WatchdogSettings
from areal_actors.display.curves import draw_curves
from areal_actors.display.sentences import plain_line
from areal_actors.display.summary import summary, write_summary
from areal_actors.display.view import RunView
from areal_actors.display.waiting import waiting_summary
from areal_actors.messages import LossEvaluated, RunFinished, RunStarted, StepCompleted, Throughput, WeightsPublished
from areal_actors.metrics.metrics_file import Metrics
from areal_actors.supervision.watchdog import Watchdog
from areal_bus.base import Stamp
from areal_bus.memory import MemoryBus

STARTED = RunStarted(
    recipe={
        "steps": 4,
        "model": "embedded",
        "task": {"dataset": "arithmetic"},
        "algorithm": {"name": "dpo"},
        "actors": {"example_source": {"count": 1}},
    },
    profile="embedded",
    reason="no CUDA device was found",
    folder="runs/dpo",
)


def stepped(step):
    metrics = {"loss": 0.7 - step / 10, "accuracy": 0.5 + step / 10, "examples": 16.0, "trained_tokens": 100.0}
    return StepCompleted(step=step, metrics=metrics, sequences_checksum="00")


def measured(version):
    return LossEvaluated(
        weight_version=version, examples=64, metrics={"loss": 0.7 - version / 10, "accuracy": 0.5 + version / 8}
    )


def whole_run():
    messages = [STARTED, WeightsPublished(weight_version=0, location=story.LOCATION), measured(0)]
    messages += [
        message for step in range(1, 5) for message in (stepped(step), *([measured(step)] if step % 2 == 0 else []))
    ]
    return [story.sealed(message, 10.0 * place) for place, message in enumerate([*messages, RunFinished(steps=4)])]


def printed(picture, width=110):
    console = Console(width=width, file=io.StringIO())
    console.print(picture)
    return " ".join(console.file.getvalue().split())


def view_of(*envelopes):
    view = RunView()
    for envelope in envelopes:
        view.receive(envelope)
    return view


def test_the_picture_shows_losses_where_other_runs_show_rewards():
    text = printed(view_of(*whole_run()))
    for part in (
        "loss 0.300",
        "from 0.600",
        "loss 0.700 → 0.300",
        "accuracy 0.500 → 1.000",
        "of 64 examples at step 4",
    ):
        assert part in text
    assert "reward" not in text


def test_a_line_reports_the_metrics():
    assert plain_line(measured(2)) == "held out at step 2: loss 0.5000, accuracy 0.7500 of 64 examples"
    assert plain_line(stepped(1)) == "step 1: loss 0.6000, accuracy 0.600"


def test_the_summary_reports_losses_and_no_episodes():
    trained = Throughput(actor="trainer", side="training", tokens=100, started=0.0, seconds=1.0)
    text = printed(summary(view_of(*whole_run()).state, [trained]))
    for part in (
        "steps 4 of 4",
        "trained 64 examples, 400 tokens",
        "loss first step 0.6000, last 0.3000, lowest 0.3000",
        "held out, loss 0.7000 → 0.3000 of 64 examples",
        "held out, accuracy 0.5000 → 1.0000 of 64 examples",
    ):
        assert part in text
    assert not any(word in text for word in ("episodes", "overlap", "staleness", "reward"))


async def test_the_picture_left_in_the_folder_is_that_of_losses(tmp_path):
    bus = MemoryBus("dpo")
    for envelope in whole_run():
        message = view_of().receive(envelope)
        await bus.publish(message, Stamp(id=envelope.id, sender="s", time=envelope.time))
    await write_summary(bus, tmp_path)
    await bus.close()
    assert (tmp_path / "loss.png").exists()
    assert not (tmp_path / "reward.png").exists()
    draw_curves(view_of(story.sealed(STARTED)).state, tmp_path / "empty.png")
    whole, empty = imread(tmp_path / "loss.png"), imread(tmp_path / "empty.png")
    assert (whole != 1).mean() > (empty != 1).mean()


def test_the_waiting_actor_is_reported():
    begun = [story.sealed(STARTED), story.sealed(WeightsPublished(weight_version=0, location=story.LOCATION))]
    assert (
        waiting_summary(view_of(*begun, story.beat("trainer-0", "trainer", handling={"ExamplesDrawn": 1})).state)
        == "step 1 is trained"
    )
    assert (
        waiting_summary(view_of(*begun, story.trainer(busy=False)).state)
        == "the trainer waits for the examples of step 1"
    )
    over = [story.sealed(stepped(step)) for step in range(1, 5)]
    assert (
        waiting_summary(view_of(*begun, *over, story.trainer(busy=True)).state)
        == "the weights of step 4 are measured or saved"
    )


def test_a_stall_reports_how_far_the_examples_are_drawn():
    watchdog = Watchdog(WatchdogSettings(stall_seconds=60), now=0.0)
    watchdog.receive(measured(0), 10.0)
    beat = story.beat("example_source-0", "control", status={"steps_drawn": 3, "epoch": 0})
    watchdog.receive(view_of().receive(beat), 20.0)
    assert watchdog.find_stall(65.0) is None, "a measured loss is progress"
    sentence, _ = watchdog.find_stall(80.0)
    assert "the example source has drawn the examples of 3 steps" in sentence


async def test_what_was_measured_stands_in_the_metrics_file(send, tmp_path):
    await send(Metrics(tmp_path / "metrics.jsonl"), measured(2))
    assert (
        '"kind":"loss.evaluated","weight_version":2,"examples":64,"metrics":{"loss":'
        in (tmp_path / "metrics.jsonl").read_text()
    )
