"""In a hand-written loop, too, held-out episodes are admitted apart: neither they nor training wait for each other."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from support.controller_harness import ROWS, GatedWorkflow, OneCallWorkflow, controller, recipe_for, task_settings

from areal_actors.core.errors import RolloutTimeout
from areal_actors.evaluation.evaluator import EvaluationConfig

AGENT = """\
import json, pathlib, time, urllib.request

GATE = pathlib.Path(__file__).with_name("gate")


class Agent:
    async def run(self, data, *, base_url, api_key):
        while data.get("held_out") and not GATE.exists():
            time.sleep(0.02)
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": data["question"]}]}).encode()
        headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(f"{base_url}/chat/completions", body, headers)).read()
        return 1.0
"""
HELD_OUT = [{**row, "held_out": True} for row in ROWS[90:]]


async def until(true):
    async with asyncio.timeout(300):
        while not true():  # noqa: ASYNC110 - what it waits for has no event
            await asyncio.sleep(0.005)


async def test_held_out_episodes_in_processes_take_none_of_those_that_train(tmp_path):
    (tmp_path / "agent.py").write_text(AGENT)
    recipe = recipe_for(tmp_path, task=task_settings(agent="agent.py:Agent", runner="subprocess", processes=1))
    async with controller(recipe, root=tmp_path) as rollouts:
        evaluating = asyncio.create_task(rollouts.evaluate(HELD_OUT[:3], timeout=300))
        await until(lambda: rollouts._evaluating)
        batch = await rollouts.rollout_batch(ROWS[:2], timeout=300)
        assert [len(group) for group in batch.groups] == [2, 2]
        assert not evaluating.done()
        (tmp_path / "gate").touch()
        assert (await evaluating).accuracy == 1.0


async def test_few_are_evaluated_while_others_run_and_all_at_once_otherwise(tmp_path):
    training, held_out = asyncio.Event(), asyncio.Event()
    running, rolled_out = GatedWorkflow(held_out), GatedWorkflow(training)
    recipe = recipe_for(tmp_path, evaluation=EvaluationConfig(max_concurrent=2))
    async with controller(recipe) as rollouts:
        await rollouts.submit(ROWS[0], rolled_out)
        await until(lambda: rolled_out.running == 2)
        evaluating = asyncio.create_task(rollouts.evaluate(ROWS[5:11], running, timeout=300))
        await until(lambda: running.running == 2)
        await asyncio.sleep(0.1)
        assert running.running == 2, "as many as evaluation.max_concurrent"
        training.set()
        await rollouts.wait(1, timeout=300)
        await until(lambda: running.running == 6)
        held_out.set()
        assert len((await evaluating).results) == 6


async def test_an_evaluation_that_was_given_up_leaves_its_places_to_the_next(tmp_path):
    never, training = asyncio.Event(), asyncio.Event()
    recipe = recipe_for(
        tmp_path, evaluation=EvaluationConfig(max_concurrent=2), task=task_settings(retries=1, timeout_seconds=1.0)
    )
    async with controller(recipe) as rollouts:
        await rollouts.submit(ROWS[0], GatedWorkflow(training))
        await until(lambda: rollouts._in_flight)
        with pytest.raises(RolloutTimeout, match="evaluate of 4 tasks"):
            await rollouts.evaluate(ROWS[5:9], GatedWorkflow(never), timeout=0.2)
        assert not rollouts._held_out
        evaluation = await rollouts.evaluate(ROWS[9:11], OneCallWorkflow(), timeout=300)
        assert (len(evaluation.results), evaluation.failed) == (2, ())
        assert not rollouts._evaluating


async def test_a_held_out_episode_that_fails_is_tried_again_in_its_place(tmp_path):
    class Once(OneCallWorkflow):
        async def arun_episode(self, engine, data):
            if data["id"] not in self.seen:
                self.seen.append(data["id"])
                raise ValueError("once")
            return await super().arun_episode(engine, data)

    settings = {"evaluation": EvaluationConfig(max_concurrent=1), "task": task_settings(retries=1)}
    async with controller(msgspec.structs.replace(recipe_for(tmp_path), **settings)) as rollouts:
        evaluation = await rollouts.evaluate(ROWS[:3], Once(), timeout=300)
        assert sorted(result.work.attempt for result in evaluation.results) == [2, 2, 2]
