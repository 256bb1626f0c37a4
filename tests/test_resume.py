"""Runs that are killed, interrupted or out of a trainer go on: every step once, from the same trajectories, to the same
weights."""

from __future__ import annotations

import json
import os
import signal
from collections import defaultdict

import pytest
from support.live_run import ROOT

from areal_actors.messages import (
    BatchFormed,
    CheckpointCommitted,
    EvaluationCompleted,
    ExamplesDrawn,
    LossEvaluated,
    RunFinished,
    RunResumed,
    StepCompleted,
    TrajectoryExported,
    WeightsPublished,
)

pytestmark = pytest.mark.slow

EXAMPLES = (
    *("run=gsm8k-grpo", "profile=embedded", "warm_start.steps=0", "warm_start.tail_steps=0"),
    *("evaluation.tasks=16", "evaluation.every_steps=4", "trainer.batch_size=4"),
)


TWO_ROLES = ("run=gsm8k-grpo", "algorithm.name=rae", "algorithm.group_size=1", "trainer.batch_size=8")
"""Settings of a game of two players, each with a baseline of its own, which follows from the batches before."""
DECAY = 0.95


async def events_of(run):
    return [event for _, event in await run.log()]


def of(events, kind):
    return [event for event in events if isinstance(event, kind)]


def assert_every_step_was_taken_once(events, steps):
    assert [event.step for event in of(events, StepCompleted)] == list(range(1, steps + 1))
    batches = of(events, BatchFormed)
    assert [batch.step for batch in batches] == list(range(steps))
    members = [member.episode for batch in batches for group in batch.groups for member in group]
    assert len(members) == len(set(members))
    checksums = defaultdict(set)
    for event in of(events, WeightsPublished):
        checksums[event.weight_version].add(event.location.checksum)
    assert set(checksums) == set(range(steps + 1))
    assert all(len(found) == 1 for found in checksums.values()), (
        "a version that was made twice is the same to the last bit"
    )
    assert of(events, RunFinished)[-1] == RunFinished(steps=steps)


def baselines_of_the_log(log):
    """The paper's update over the episodes of the recorded batches: name and value, in their order."""
    trajectories = {place: event.trajectory for place, event in log if isinstance(event, TrajectoryExported)}
    averages, baselines = {}, []
    for batch in (event for _, event in log if isinstance(event, BatchFormed)):
        for member in (member for group in batch.groups for member in group):
            trajectory = trajectories[member.sequence]
            before = averages.get(trajectory.role, 0.0)
            baselines.append({trajectory.role: pytest.approx(before, abs=1e-12)})
            averages[trajectory.role] = DECAY * before + (1 - DECAY) * trajectory.reward
    return baselines


async def test_a_killed_run_takes_the_steps_since_its_checkpoint_again_and_comes_to_the_same_weights(live):
    recipe = ROOT / "recipes" / "two_player_nim.toml"
    run = live("steps=9", "checkpoint.every_steps=3", "evaluation.every_steps=4", *TWO_ROLES, recipe=recipe)
    async with run.listening():
        await run.until(StepCompleted, 5)
    run.process.kill()
    run.resume()
    assert await run.ended() == 0, run.output()
    log = await run.log()
    events = [event for _, event in log]
    assert_every_step_was_taken_once(events, 9)
    recorded = [member.baselines for batch in of(events, BatchFormed) for group in batch.groups for member in group]
    assert {name for baselines in recorded for name in baselines} == {"first", "second"}
    assert recorded == baselines_of_the_log(log)
    assert all("baseline/first" in step.metrics for step in of(events, StepCompleted))
    (resumed,) = of(events, RunResumed)
    reached = len(of(events[: events.index(resumed)], StepCompleted))
    published = [event.weight_version for event in of(events, WeightsPublished)]
    assert published.count(reached) == 2 or published.count(reached + 1) == 2, (
        "inference workers have to load them anew"
    )
    assert {(event.weight_version, event.mode) for event in of(events, EvaluationCompleted)} >= {
        (9, "sampled"),
        (9, "greedy"),
    }
    records = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in records if line["kind"] == "step.completed"]
    assert sorted(set(steps)) == list(range(1, 10))
    assert run.processes_left() == []


@pytest.mark.long
async def test_an_interrupted_run_continues_with_other_settings_of_how_fast_and_refuses_others_of_what(live):
    run = live("steps=40", "evaluation.tasks=0")
    async with run.listening():
        await run.until(StepCompleted, 3)
        os.kill(run.process.pid, signal.SIGINT)
        assert await run.ended() == 130, run.output()
    assert "areal-actors resume gsm8k-grpo" in run.output()
    run.resume("trainer.optimizer.lr=1.0", "trainer.microbatch_tokens=2048")
    assert await run.ended() == 2
    assert "`trainer.optimizer.lr`: found 1.0 for a run that began with" in run.output()
    run.resume("trainer.microbatch_tokens=2048", "actors.rollout_worker.concurrency=8")
    async with run.listening():
        await run.until(RunResumed, 1)
        os.kill(run.process.pid, signal.SIGINT)
        assert await run.ended() == 130, "who has trained nothing new has nothing to save"
    run.resume()
    assert await run.ended() == 0, run.output()
    events = await events_of(run)
    resumed, *_ = of(events, RunResumed)
    assert resumed.reason == "with trainer.microbatch_tokens = 2048, actors.rollout_worker.concurrency = 8"
    assert resumed.recipe["trainer"]["microbatch_tokens"] == 2048
    assert [event.step for event in of(events, StepCompleted)] == list(range(1, 41))
    run.resume()
    assert await run.ended() == 1
    assert "has done all its 40 steps" in run.output()
    assert run.processes_left() == []


@pytest.mark.long
async def test_a_trainer_that_is_killed_comes_back_to_where_the_run_is(live):
    run = live("steps=60", "checkpoint.every_steps=4", "evaluation.tasks=0")
    async with run.listening():
        for steps in (2, 6):
            await run.until(StepCompleted, steps)
            run.kill("trainer")
        assert await run.ended() == 0, run.output()
    events = await events_of(run)
    assert_every_step_was_taken_once(events, 60)
    assert of(events, CheckpointCommitted)[-1].step == 60
    assert run.processes_left() == []


@pytest.mark.long
async def test_a_run_that_learns_from_examples_and_is_killed_continues(live):
    run = live("steps=80", "checkpoint.every_steps=5", *EXAMPLES, recipe=ROOT / "recipes" / "sft.toml", small=False)
    async with run.listening():
        await run.until(StepCompleted, 7)
    run.process.kill()
    run.resume()
    assert await run.ended() == 0, run.output()
    events = await events_of(run)
    assert [event.step for event in of(events, StepCompleted)] == list(range(1, 81))
    assert sorted({event.step for event in of(events, ExamplesDrawn)}) == list(range(80))
    assert [event.weight_version for event in of(events, LossEvaluated)] == list(range(0, 81, 4))
    assert of(events, CheckpointCommitted)[-1].step == 80
    assert run.processes_left() == []
