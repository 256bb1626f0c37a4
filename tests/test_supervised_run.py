"""Runs that learn from examples, for real: from the command line to the checkpoint, without agents, gateway or
engine."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.live_run import ROOT, LiveRun
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import (
    ActorFailed,
    ActorStarted,
    BestCheckpointChosen,
    CheckpointCommitted,
    ExamplesDrawn,
    LossEvaluated,
    RunFinished,
    StepCompleted,
    WeightsPublished,
)
from areal_actors.processes.cpu_actors import CPU_ACTORS
from areal_actors.processes.fold_actors import BuildContext
from areal_actors.replay.tape import replay
from areal_actors.supervised.example_sequences import sequences_of_example
from areal_actors.supervised.examples import arithmetic_examples
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_bus.recorded import read_tape

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

SMALL = (
    *("run=gsm8k-grpo", "profile=embedded", "warm_start.steps=0", "warm_start.tail_steps=0"),
    *("evaluation.tasks=16", "evaluation.every_steps=4", "trainer.batch_size=4"),
)
LEARNS = {
    "sft": "trainer.optimizer.lr=3e-3",
    "dpo": "trainer.optimizer.lr=1e-3",
    "reward_model": "trainer.optimizer.lr=3e-3",
}
"""Settings of an untrained model, for a few steps."""


@pytest.fixture
def live(tmp_path):
    runs = []

    def start(recipe, *settings):
        run = LiveRun(
            tmp_path / f"runs{len(runs)}", *SMALL, *settings, recipe=ROOT / "recipes" / f"{recipe}.toml", small=False
        )
        runs.append(run)
        return run

    yield start
    for run in runs:
        run.abort()


async def differences_on_replay(folder: RunFolder, kind: str):
    """Feed a real run's tape to a fresh actor, built as the run built it."""
    recipe, instance = folder.recipe(), f"{kind}-0"
    actor = CPU_ACTORS[kind](BuildContext(recipe=recipe, folder=folder, instance=instance))
    tape = list(read_tape(folder.path / "tapes" / f"{instance}.1.tape"))
    assert any(entry.kind == "emitted" for entry in tape)
    return await replay(actor, tape, instance=instance, seed=recipe.seed)


def scores_by_hand(folder: Path, examples):
    """Mean margin of a reward model, by transformers alone."""
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), ChatTokenizer.load(folder)
    assert model.config.num_labels == 1
    margins = []
    for example in examples:
        chosen, rejected = sequences_of_example(example, 0, tokenizer, scored=True)
        with torch.no_grad():
            scores = [
                float(model(input_ids=torch.from_numpy(row.token_ids[:-1])[None]).logits) for row in (chosen, rejected)
            ]
        margins.append(scores[0] - scores[1])
    return sum(margins) / len(margins)


@pytest.mark.parametrize("name", LEARNS)
async def test_a_run_learns_from_examples_and_ends_with_everything_in_its_place(live, name):
    run = live(name, "steps=8", "record_actor_io=true", LEARNS[name])
    assert await run.ended() == 0, run.output()
    assert run.processes_left() == []
    log = [event for _, event in await run.log()]

    def logged(kind):
        return [event for event in log if isinstance(event, kind)]

    assert {event.process for event in logged(ActorStarted)} == {"control", "trainer"}
    assert [event.step for event in logged(ExamplesDrawn)] == list(range(8))
    assert [event.step for event in logged(StepCompleted)] == list(range(1, 9))
    assert all(event.metrics["examples"] == 4 for event in logged(StepCompleted))
    assert [event.weight_version for event in logged(WeightsPublished)] == [0], "later versions are not loaded"
    measured = logged(LossEvaluated)
    assert [event.weight_version for event in measured] == [0, 4, 8]
    assert measured[-1].metrics["loss"] < measured[0].metrics["loss"] - 0.01
    assert logged(RunFinished) == [RunFinished(steps=8)]
    for kind in ("example_source", "checkpointer"):
        assert await differences_on_replay(RunFolder(run.folder), kind) == []
    assert (run.folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert not (run.folder / "reward.png").exists()
    kinds = {json.loads(line)["kind"] for line in (run.folder / "metrics.jsonl").read_text().splitlines()}
    assert {"run.started", "step.completed", "loss.evaluated", "checkpoint.committed", "engine.throughput"} <= kinds
    words = ("32 examples", "held out, loss", "of 16 examples")
    assert all(word in (run.folder / "summary.txt").read_text() for word in words)
    checkpoint = run.folder / "checkpoints" / "step-8"
    if name == "reward_model":
        margin = scores_by_hand(checkpoint, arithmetic_examples("pairs", "test", 16, 0))
        assert margin == pytest.approx(measured[-1].metrics["margin"], abs=1e-4)
    else:
        assert AutoModelForCausalLM.from_pretrained(checkpoint) is not None


async def test_the_last_choice_of_the_best_checkpoint_is_logged_before_the_run_ends(live):
    run = live("sft", "steps=4", "checkpoint.keep_best=loss", LEARNS["sft"])
    assert await run.ended() == 0, run.output()
    log = [event for _, event in await run.log()]
    best = [event for event in log if isinstance(event, BestCheckpointChosen)][-1]
    assert best.step == 4
    assert log.index(best) < log.index(RunFinished(steps=4))
    records = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in records if line["kind"] == "checkpoint.chosen"][-1] == 4
    assert "best checkpoint: step 4, loss " in run.output()


async def test_the_control_process_may_be_killed_and_the_weights_come_out_the_same(live):
    settings = ("steps=40", "evaluation.every_steps=0")
    undisturbed = live("sft", *settings)
    assert await undisturbed.ended() == 0, undisturbed.output()
    run = live("sft", *settings)
    async with run.listening():
        for steps in (2, 20):
            await run.until(StepCompleted, steps)
            run.kill("control")
    assert await run.ended() == 0, run.output()
    log = await run.log()
    assert {event.process for _, event in log if isinstance(event, ActorFailed)} == {"control"}
    assert [event.step for _, event in log if isinstance(event, StepCompleted)] == list(range(1, 41))
    ours, theirs = (
        load_file(each.folder / "checkpoints" / "step-40" / "model.safetensors") for each in (run, undisturbed)
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


async def test_an_interrupted_run_saves_a_checkpoint(live):
    run = live("sft", "steps=5000", "evaluation.tasks=0")
    async with run.listening():
        await run.until(StepCompleted, 2)
        os.kill(run.process.pid, signal.SIGINT)
        assert await run.ended() == 130, run.output()
    saved = [event for _, event in await run.log() if isinstance(event, CheckpointCommitted)]
    assert len(saved) == 1
    assert int((run.folder / saved[0].folder / "cursor").read_text()) == saved[0].cursor > 0
    assert run.processes_left() == []
