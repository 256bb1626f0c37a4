"""Rollouts for a hand-written loop, over the actors of a run."""

from __future__ import annotations

import asyncio

import pytest
from support.controller_harness import (
    LOCATION,
    ROWS,
    GatedWorkflow,
    OneCallWorkflow,
    controller,
    recipe_for,
    task_settings,
)
from support.fake_engine import FixedTextEngine

from areal_actors.core.errors import AgentError, EngineError, RecipeError, RolloutError, RolloutTimeout
from areal_actors.library.controllers import RolloutController
from areal_actors.library.workflow import ArealOpenAI, RolloutWorkflow
from areal_actors.messages import BatchFormed, TrajectoryDropped, TrajectoryExported


def logged(rollouts, kind):
    return [envelope.open(kind) for envelope in rollouts._host.bus._log if envelope.subject == kind.subject]


async def until(reached):
    async with asyncio.timeout(300):
        while not reached():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)


def episodes(batch):
    return [[reference.episode for reference in group] for group in batch.groups]


async def test_what_is_submitted_comes_back_as_whole_groups(tmp_path):
    async with controller(recipe_for(tmp_path)) as rollouts:
        workflow = OneCallWorkflow()
        assert [await rollouts.submit(row, workflow) for row in ROWS[:3]] == [0, 1, 2]
        batch = await rollouts.wait(3, timeout=300)
        assert episodes(batch) == [[f"{number}.0", f"{number}.1"] for number in range(3)]
        assert sorted(workflow.seen) == sorted(row["id"] for row in ROWS[:3] * 2)
        assert batch.tokens() == 6 * len("hi there\n")
        trajectories = await rollouts.trajectories(batch)
        assert [one.task for one in trajectories] == ["row-0", "row-0", "row-1", "row-1", "row-2", "row-2"]
        assert logged(rollouts, BatchFormed) == [batch.to_event()]


async def test_a_call_sets_the_size_of_its_groups(tmp_path):
    async with controller(recipe_for(tmp_path, batch_size=3)) as rollouts:
        workflow = OneCallWorkflow()
        numbers = [
            await rollouts.submit(row, workflow, group_size=size) for row, size in zip(ROWS, (3, 1), strict=False)
        ]
        numbers.append(await rollouts.submit(ROWS[2], workflow))
        places, batch = await rollouts.collect(numbers, 3, timeout=300)
        assert episodes(batch) == [["0.0", "0.1", "0.2"], ["1.0"], ["2.0", "2.1"]]
        assert (batch.numbers, places) == ((0, 1, 2), {0: 0, 1: 1, 2: 2})
        with pytest.raises(RolloutError, match="group_size is 0; a group has at least one episode"):
            await rollouts.submit(ROWS[3], workflow, group_size=0)


async def test_a_group_without_a_trajectory_has_ended_too(tmp_path):
    async def fail_first(task, *, base_url, api_key):
        if task["id"] == "row-0":
            raise ValueError("no")
        return await OneCallWorkflow().arun_episode(type("Place", (), {"base_url": base_url, "api_key": api_key}), task)

    async with controller(recipe_for(tmp_path)) as rollouts:
        numbers = [await rollouts.submit(row, fail_first) for row in ROWS[:2]]
        places, batch = await rollouts.collect(numbers, 2, timeout=300)
        assert (places, batch.numbers) == ({0: None, 1: 0}, (1,))
        assert rollouts.is_healthy()
    assert not rollouts.is_healthy()


async def test_a_workflow_is_an_object_a_class_a_function_or_the_name_of_one(tmp_path, monkeypatch):
    async def function(task, *, base_url, api_key):
        return await OneCallWorkflow(3.0).arun_episode(
            type("Place", (), {"base_url": base_url, "api_key": api_key}), task
        )

    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from support.controller_harness import OneCallWorkflow\nclass Named(OneCallWorkflow):\n"
        "    def __init__(self, reward):\n        super().__init__(reward)\n"
    )
    given = [
        (OneCallWorkflow(1.0), {}),
        (OneCallWorkflow, {"reward": 2.0}),
        (function, {}),
        ("mine.py:Named", {"reward": 4.0}),
        ("mine.Named", {"reward": 5.0}),
    ]
    async with controller(recipe_for(tmp_path, batch_size=5, group_size=1), root=tmp_path) as rollouts:
        for row, (workflow, options) in zip(ROWS, given, strict=False):
            await rollouts.submit(row, workflow, options=options)
        trajectories = await rollouts.trajectories(await rollouts.wait(5, timeout=300))
    assert [one.reward for one in trajectories] == [1.0, 2.0, 3.0, 4.0, 5.0]


async def test_a_workflow_of_groups_has_them_whole(tmp_path):
    class Compares(RolloutWorkflow):
        async def arun_group(self, engines, data):
            for engine in engines:
                async with ArealOpenAI(engine, max_retries=0) as client:
                    await client.chat.completions.create(
                        model="default", messages=[{"role": "user", "content": data["question"]}]
                    )
            return [float(place) for place in range(len(engines))]

    async with controller(recipe_for(tmp_path, group_size=3)) as rollouts:
        trajectories = await rollouts.trajectories(await rollouts.rollout_batch(ROWS[:2], Compares(), timeout=300))
    assert sorted(one.reward for one in trajectories) == [0, 0, 1, 1, 2, 2]


async def test_a_workflow_that_raises_is_an_abandoned_episode_with_its_reason(tmp_path):
    class Raises(OneCallWorkflow):
        async def arun_episode(self, engine, data):
            if data["id"] == "row-1":
                raise ValueError("no idea")
            return await super().arun_episode(engine, data)

    async with controller(recipe_for(tmp_path)) as rollouts:
        batch = await rollouts.rollout_batch(ROWS[:3], Raises(), timeout=300)
        assert episodes(batch) == [["0.0", "0.1"], ["2.0", "2.1"]]
        assert {(one.work.task.id, one.reason) for one in rollouts.abandoned} == {("row-1", "agent")}
        assert all("ValueError: no idea" in one.detail for one in rollouts.abandoned)
        with pytest.raises(RolloutError, match=r"nothing runs and nothing waits .* no idea"):
            await rollouts.wait(1, timeout=300)


async def test_an_abandoned_episode_is_retried_as_often_as_the_recipe_sets(tmp_path):
    class Flaky(OneCallWorkflow):
        tries = 0

        async def arun_episode(self, engine, data):
            self.tries += 1
            if self.tries < 3:
                raise ValueError("not yet")
            return await super().arun_episode(engine, data)

    async with controller(recipe_for(tmp_path, group_size=1, task=task_settings(retries=2))) as rollouts:
        batch = await rollouts.rollout_batch(ROWS[:1], Flaky(), timeout=300)
        assert [one.attempt for one in await rollouts.trajectories(batch)] == [3]
        assert not rollouts.abandoned


async def test_too_many_failures_in_a_row_are_an_error_without_a_timeout(tmp_path):
    class Raises(RolloutWorkflow):
        async def arun_episode(self, engine, data):
            raise ValueError("never")

    async with controller(recipe_for(tmp_path, max_concurrent=4)) as rollouts:
        with pytest.raises(RolloutError, match=r"6\d episodes failed in a row; .*ValueError: never"):
            await rollouts.prepare_batch(ROWS, Raises(), timeout=300)


async def test_should_accept_decides_group_by_group(tmp_path):
    async with controller(recipe_for(tmp_path, group_size=1, batch_size=3)) as rollouts:
        await rollouts.submit(ROWS[0], OneCallWorkflow(0.0), should_accept=lambda episode: episode["reward"] > 0)
        await rollouts.submit(ROWS[1], OneCallWorkflow(1.0), should_accept=lambda episode: episode["reward"] > 0)
        await rollouts.submit(ROWS[2], OneCallWorkflow(0.0))
        batch = await rollouts.wait(2, timeout=300)
        assert episodes(batch) == [["1.0"], ["2.0"]]
        await until(lambda: rollouts.abandoned)
        assert [(one.work.episode, one.reason) for one in rollouts.abandoned] == [("0.0", "rejected")]


async def test_paused_nothing_starts_and_resumed_it_does(tmp_path):
    async with controller(recipe_for(tmp_path)) as rollouts:
        workflow = OneCallWorkflow()
        await rollouts.pause()
        await rollouts.submit(ROWS[0], workflow)
        with pytest.raises(
            RolloutTimeout, match=r"wait\(1\): not within 0.3 s: .*1 wait to start \(the controller is paused"
        ):
            await rollouts.wait(1, timeout=0.3)
        assert workflow.seen == []
        evaluation = await rollouts.evaluate(ROWS[5:6], workflow, timeout=300)
        assert (evaluation.accuracy, workflow.seen) == (1.0, ["row-5"])
        await rollouts.resume()
        assert episodes(await rollouts.wait(1, timeout=300)) == [["0.0", "0.1"]]


async def test_paused_a_failed_episode_is_not_tried_again_before_it_is_resumed(tmp_path):
    gate, tries = asyncio.Event(), []

    class Once(OneCallWorkflow):
        async def arun_episode(self, engine, data):
            tries.append(data["id"])
            if len(tries) == 1:
                await gate.wait()
                raise ValueError("once")
            return await super().arun_episode(engine, data)

    async with controller(recipe_for(tmp_path, group_size=1, task=task_settings(retries=1))) as rollouts:
        await rollouts.submit(ROWS[0], Once())
        await until(lambda: tries)
        await rollouts.pause()
        gate.set()
        await until(lambda: rollouts._held)
        assert len(tries) == 1
        await rollouts.resume()
        await rollouts.wait(1, timeout=300)
        assert len(tries) == 2


async def test_weights_reach_every_inference_worker_before_update_weights_returns(tmp_path):
    async with controller(recipe_for(tmp_path, workers=2)) as rollouts:
        assert await rollouts.update_weights(LOCATION, 3) == 3
        assert {name: engine.weight_version for name, engine in rollouts.engines.items()} == {
            "inference_worker-0": 3,
            "inference_worker-1": 3,
        }
        with pytest.raises(RolloutError, match="version 3 is not newer than 3"):
            await rollouts.update_weights(LOCATION, 3)
        batch = await rollouts.rollout_batch(ROWS[:2], OneCallWorkflow(), timeout=300)
        assert {(reference.oldest_version, batch.step) for reference in batch.references()} == {(3, 3)}


async def test_a_worker_that_does_not_load_weights_is_named(tmp_path):
    class Slow(FixedTextEngine):
        async def load_weights(self, location, weight_version):
            if weight_version:
                await asyncio.sleep(60)
            await super().load_weights(location, weight_version)

    async with controller(recipe_for(tmp_path), Slow) as rollouts:
        with pytest.raises(
            RolloutTimeout, match=r"update_weights to version 1: not within 0\.2 s: inference_worker-0 has not loaded"
        ):
            await rollouts.update_weights(LOCATION, timeout=0.2)


async def test_a_worker_that_fails_ends_every_wait_with_its_name(tmp_path):
    class Broken(FixedTextEngine):
        async def load_weights(self, location, weight_version):
            if weight_version:
                raise EngineError("the weights are damaged")
            await super().load_weights(location, weight_version)

    async with controller(recipe_for(tmp_path), Broken) as rollouts:
        await rollouts.submit(ROWS[0], GatedWorkflow(asyncio.Event()))
        waiting = asyncio.create_task(rollouts.wait(1, timeout=300))
        with pytest.raises(RolloutError, match="inference_worker-0 failed: EngineError: the weights are damaged"):
            await rollouts.update_weights(LOCATION)
        with pytest.raises(RolloutError, match="inference_worker-0 failed"):
            await waiting


async def test_without_weights_or_when_not_started_the_controller_reports_what_is_missing(tmp_path):
    async with controller(recipe_for(tmp_path), published=False) as rollouts:
        with pytest.raises(RolloutError, match=r"wait\(1\): there are no weights yet; first call update_weights"):
            await rollouts.wait(1)
        await rollouts.update_weights(LOCATION)
        with pytest.raises(RolloutError, match=r"wait\(1\): nothing runs and nothing waits to start"):
            await rollouts.wait(1, timeout=300)
        with pytest.raises(RolloutError, match="at most 4 groups ahead of the weights"):
            await rollouts.rollout_batch(ROWS[:5], OneCallWorkflow())
        with pytest.raises(AgentError, match=r"no workflow was given, and the recipe has no `task.agent`"):
            await rollouts.submit(ROWS[0])
        with pytest.raises(RecipeError, match="there is no file"):
            await rollouts.submit(ROWS[0], "nowhere.py:Agent")
        with pytest.raises(RolloutError, match="a task is int 3; pass a mapping"):
            await rollouts.submit(3, OneCallWorkflow())
        await rollouts.submit(ROWS[0], GatedWorkflow(asyncio.Event()))
        waiting = asyncio.create_task(rollouts.wait(1, timeout=300))
        await asyncio.sleep(0.05)
    with pytest.raises(RolloutError, match="this controller was closed"):
        await waiting
    with pytest.raises(RolloutError, match="submit: this controller was closed"):
        await rollouts.submit(ROWS[1], OneCallWorkflow())


async def test_prepare_batch_runs_ahead_as_far_as_staleness_allows_and_no_further(tmp_path):
    gate = asyncio.Event()
    async with controller(recipe_for(tmp_path, batch_size=2, max_staleness=1)) as rollouts:
        workflow = GatedWorkflow(gate)
        preparing = asyncio.create_task(rollouts.prepare_batch(iter(ROWS), workflow, timeout=300))
        await asyncio.sleep(0.3)
        assert workflow.running == 2 * 2 * 2, "(max_staleness + 1) batches of 2 groups of 2 episodes"
        gate.set()
        await preparing
        await asyncio.sleep(0.3)
        assert workflow.running == 8, "a batch was taken, but it is not in the weights"
        await rollouts.update_weights(LOCATION)
        await until(lambda: workflow.running == 12)


async def test_no_trained_token_is_older_than_the_bound_under_a_slow_workflow(tmp_path):
    class Straggles(OneCallWorkflow):
        begun = 0

        async def arun_episode(self, engine, data):
            self.begun += 1
            reward = await super().arun_episode(engine, data)
            await asyncio.sleep(0.5 if self.begun % 5 == 0 else 0)
            return reward

    workflow, tasks = Straggles(), iter(ROWS)
    async with controller(recipe_for(tmp_path, batch_size=2, max_staleness=1)) as rollouts:
        for _ in range(8):
            batch = await rollouts.prepare_batch(tasks, workflow, timeout=300)
            assert batch.oldest_version == batch.step - 1
            assert all(reference.newest_version >= batch.oldest_version for reference in batch.references())
            await rollouts.update_weights(LOCATION)
        trained = {one.episode for formed in logged(rollouts, BatchFormed) for group in formed.groups for one in group}
        dropped = {one.episode for one in logged(rollouts, TrajectoryDropped)}
        exported = {one.trajectory.episode for one in logged(rollouts, TrajectoryExported)}
        assert len(trained) == 8 * 2 * 2
        assert not trained & dropped
        assert trained | dropped <= exported


async def test_a_list_of_tasks_begins_again_and_an_iterator_ends(tmp_path):
    async with controller(recipe_for(tmp_path, group_size=1)) as rollouts:
        workflow, loader = OneCallWorkflow(), [ROWS[:2], ROWS[2:3]]
        for _ in range(3):
            await rollouts.prepare_batch(loader, workflow, timeout=300)
            await rollouts.update_weights(LOCATION)
        assert workflow.seen[:6] == ["row-0", "row-1", "row-2"] * 2
    async with controller(recipe_for(tmp_path, group_size=1)) as rollouts:
        few = iter(ROWS[:3])
        await rollouts.prepare_batch(few, workflow, timeout=300)
        await rollouts.update_weights(LOCATION)
        with pytest.raises(RolloutError, match="prepare_batch: the tasks ended after 3: 1 groups are complete"):
            await rollouts.prepare_batch(few, workflow, timeout=300)


async def test_a_controller_lives_once(tmp_path):
    async with controller(recipe_for(tmp_path)) as rollouts:
        with pytest.raises(RolloutError, match="start: this controller is already running; create another"):
            await rollouts.start()
    await rollouts.close()
    with pytest.raises(RolloutError, match="start: this controller was closed; create another"):
        await rollouts.start()


def test_a_script_gets_the_same_error(tmp_path):
    rollouts = RolloutController(recipe_for(tmp_path))
    with pytest.raises(RolloutError, match=r"wait\(1\): this controller has not been started"):
        rollouts.wait(1)
    rollouts.close()
    assert rollouts.weight_version == -1
