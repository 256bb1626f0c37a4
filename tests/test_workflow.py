from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import openai
import pytest
from support.fake_engine import FixedTextEngine
from support.gateway_harness import HELLO, opened_gateway
from support.samples import work

from areal_actors.core.errors import AgentError, RewardError
from areal_actors.library.workflow import ArealOpenAI, RolloutWorkflow, workflow_context
from areal_actors.messages import OpenSession, SessionOpened
from areal_actors.rollout.agent_process import AgentProgram
from areal_actors.rollout.agent_runner import AgentResult
from areal_actors.rollout.episode_context import EpisodeContext
from areal_actors.rollout.group_runner import GroupRunner
from areal_actors.rollout.inline_runner import InlineRunner, load_agent
from areal_actors.rollout.rollout_worker import RolloutWorker
from areal_actors.rollout.subprocess_runner import SubprocessRunner


def engine_of(opened):
    return SimpleNamespace(base_url=opened.base_url, api_key=opened.api_key, task={})


async def asked(client, *texts):
    messages = HELLO + [
        {"role": role, "content": text} for role, text in zip(["assistant", "user"] * 9, texts, strict=False)
    ]
    return await client.chat.completions.create(model="default", messages=messages)


async def test_rewards_set_on_the_client_reach_the_trajectory():
    async with opened_gateway() as harness:
        await harness.engine("inference_worker-0", FixedTextEngine())
        opened = await harness.open()
        async with ArealOpenAI(engine_of(opened)) as client:
            first = await asked(client)
            second = await asked(client, "hi there", "again")
            await client.set_reward(first.id, np.float32(0.25))
            await client.set_last_reward(2)
            assert [(turn.id, turn.parent, turn.reward) for turn in await client.get_interactions()] == [
                (first.id, "", 0.25),
                (second.id, first.id, 2.0),
            ]
        trajectory = await harness.trajectory(opened, reward=None)
        assert [turn.reward for turn in trajectory.interactions] == [0.25, 2.0]


async def test_an_export_under_way_credits_the_calls_that_came_before():
    async with opened_gateway() as harness:
        await harness.engine("inference_worker-0", FixedTextEngine())
        async with ArealOpenAI(engine_of(await harness.open())) as client:
            first = await asked(client)
            second = await asked(client, "hi there", "again")
            third = await asked(client, "hi there", "again", "hi there", "once more")
            await client.set_reward(third.id, 1.0)
            individual = await client.export_interactions(discount=0.9)
            assert [round(turn.reward, 9) for turn in individual.values()] == [0.81, 0.9, 1.0]
            assert list(individual) == [first.id, second.id, third.id]
            assert list(await client.export_interactions(style="concat")) == [third.id]
            assert [turn.reward for turn in await client.get_interactions()] == [None, None, 1.0]


async def test_what_cannot_be_rewarded_is_an_error_of_the_client():
    async with opened_gateway() as harness:
        await harness.engine("inference_worker-0", FixedTextEngine())
        async with ArealOpenAI(engine_of(await harness.open())) as client:
            with pytest.raises(openai.APIStatusError, match="no completed interaction"):
                await client.set_last_reward(1.0)
            await asked(client)
            with pytest.raises(openai.APIStatusError, match="no completed interaction 'other'"):
                await client.set_reward("other", 1.0)
            with pytest.raises(RewardError, match="a reward must be finite"):
                await client.set_last_reward(float("nan"))


async def test_options_hold_where_they_are_given_and_copies_stay_clients_of_the_episode():
    engine = SimpleNamespace(base_url="http://here/s/v1", api_key="sk-1")
    async with ArealOpenAI(engine, max_retries=0, timeout=3) as client:
        copied = client.with_options(max_retries=1)
        assert (type(copied), copied.api_key, str(copied.base_url)) == (ArealOpenAI, "sk-1", "http://here/s/v1/")
        assert (client.max_retries, client.timeout, copied.max_retries, copied.timeout) == (0, 3, 1, 3)
    async with ArealOpenAI(engine) as client:
        assert client.timeout.read is None


class Rooted(RolloutWorkflow):
    async def arun_episode(self, engine, data):
        return f"{data['question']} {engine.base_url} {engine.api_key} {engine.task is data}"


async def test_a_workflow_runs_like_an_agent():
    result = await InlineRunner(Rooted(), "rooted").run(work().task, base_url="u", api_key="k")
    assert result == AgentResult(output="why? u k True")
    assert not Rooted().runs_groups


async def test_a_workflow_of_groups_plays_alone_where_there_is_no_group():
    class Grouped(RolloutWorkflow):
        async def arun_group(self, engines, data):
            return [engine.api_key for engine in engines]

    assert Grouped().runs_groups
    assert await Grouped().arun_episode(SimpleNamespace(api_key="k"), {}) == "k"
    assert (
        await Rooted().arun_group([SimpleNamespace(base_url="u", api_key="k", task=0)] * 2, {"question": "q"})
        == ["q u k False"] * 2
    )
    with pytest.raises(NotImplementedError, match="RolloutWorkflow must define `async def arun_episode"):
        await RolloutWorkflow().arun_episode(SimpleNamespace(), {})


# ---------------------------------------------------------------- which episode is running

REPORTING = """
    import asyncio
    import threading
    from areal_actors.library.workflow import workflow_context

    def told():
        episode = workflow_context.get()
        ids = f"{episode.task_id} {episode.episode} {episode.group} {episode.attempt}"
        return f"{ids} {episode.is_eval} {episode.weight_version}"

    class Async:
        async def run(self, task, *, base_url, api_key):
            return (await asyncio.create_task(asyncio.sleep(0, told()))) + "|" + await asyncio.to_thread(told)

    class Plain:
        def run(self, task, *, base_url, api_key):
            return told()
"""


@pytest.mark.parametrize("name", ["Async", "Plain"])
@pytest.mark.parametrize("way", ["inline", "subprocess"])
async def test_running_code_knows_its_episode(tmp_path, name, way, send):
    (tmp_path / "telling.py").write_text(textwrap.dedent(REPORTING))
    spec = f"telling.py:{name}"
    if way == "inline":
        runner = InlineRunner.from_name(spec, tmp_path)
    else:
        runner = SubprocessRunner(AgentProgram(agent=spec, root=str(tmp_path)), processes=1)
    worker = RolloutWorker(runner, concurrency=1, timeout_seconds=5.0)
    await worker.start(None)
    opened = SessionOpened(session="s", base_url="http://h/s/v1", api_key="k", weight_version=7)
    _, scoring = await send(
        worker, work("3.1", attempt=2, purpose="evaluate"), answers={OpenSession: lambda question: opened}
    )
    await worker.stop()
    assert set(scoring.output.split("|")) == {"task-3 3.1 3 2 True 7"}
    assert workflow_context.get() == EpisodeContext()


PLAYING = """
    from areal_actors.library.workflow import ArealOpenAI, RolloutWorkflow

    class Playing(RolloutWorkflow):
        def __init__(self, reward):
            self.reward = reward

        async def arun_episode(self, engine, data):
            async with ArealOpenAI(engine) as client:
                await client.chat.completions.create(model="default", messages=[{"role": "user", "content": "hello"}])
                await client.set_last_reward(self.reward)

    def from_environment(task, *, base_url, api_key):
        import openai
        with openai.OpenAI() as client:
            answer = client.chat.completions.create(model="default", messages=[{"role": "user", "content": "hello"}])
            return answer.choices[0].message.content
"""


@pytest.mark.parametrize("way", ["inline", "subprocess"])
async def test_a_workflow_plays_with_the_real_gateway(tmp_path, way):
    (tmp_path / "playing.py").write_text(textwrap.dedent(PLAYING))
    program = AgentProgram(agent="playing.py:Playing", root=str(tmp_path), options={"reward": 0.5})
    async with opened_gateway() as harness:
        await harness.engine("inference_worker-0", FixedTextEngine())
        opened = await harness.open()
        if way == "inline":
            workflow = InlineRunner.from_name("playing.py:Playing", tmp_path, program.options)
        else:
            workflow = SubprocessRunner(program, processes=1)
        await workflow.start()
        assert await workflow.run(work().task, base_url=opened.base_url, api_key=opened.api_key) == AgentResult()
        await workflow.close()
        assert [turn.reward for turn in (await harness.trajectory(opened, reward=None)).interactions] == [0.5]


async def test_a_script_that_takes_its_client_from_the_environment_just_works(tmp_path):
    (tmp_path / "playing.py").write_text(textwrap.dedent(PLAYING))
    runner = SubprocessRunner(AgentProgram(agent="playing.py:from_environment", root=str(tmp_path)), processes=1)
    async with opened_gateway() as harness:
        await harness.engine("inference_worker-0", FixedTextEngine())
        opened = await harness.open()
        await runner.start()
        assert await runner.run(work().task, base_url=opened.base_url, api_key=opened.api_key) == AgentResult(
            output="hi there"
        )
        await runner.close()


# ---------------------------------------------------------------- rewards that were not awaited

FORGETTING = """
    from areal_actors.library.workflow import ArealOpenAI, RolloutWorkflow

    class Forgetting(RolloutWorkflow):
        def __init__(self, line):
            self.line = line

        async def arun_episode(self, engine, data):
            client = ArealOpenAI(engine)
            messages = [{"role": "user", "content": "hello"}]
            answer = await client.chat.completions.create(model="default", messages=messages)
            exec(self.line)
            await client._client.aclose()
            return 1.0

    class Together(Forgetting):
        async def arun_group(self, engines, data):
            return [await self.arun_episode(engine, data) for engine in engines]
"""
FORGOTTEN = (
    r"`?set_reward\('0.0-1-1', 1.0\) at .*:1 was not awaited, so this reward was not set; write `await"
    r" client.set_reward\(…\)`"
)


@pytest.mark.parametrize("way", ["inline", "group", "subprocess"])
async def test_a_reward_that_is_not_awaited_fails_the_episode(tmp_path, way, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    (tmp_path / "forgetting.py").write_text(textwrap.dedent(FORGETTING))
    options = {"line": "client.set_reward(answer.id, 1.0)"}
    async with opened_gateway() as harness:
        await harness.engine("inference_worker-0", FixedTextEngine())
        opened = await harness.open()
        if way == "inline":
            runner = InlineRunner.from_name("forgetting.py:Forgetting", tmp_path, options)
        elif way == "group":
            runner = GroupRunner(load_agent("forgetting.py:Together", tmp_path, options), "Together", group_size=1)
        else:
            runner = SubprocessRunner(
                AgentProgram(agent="forgetting.py:Forgetting", root=str(tmp_path), options=options), processes=1
            )
        await runner.start()
        with pytest.raises(AgentError, match=FORGOTTEN), workflow_context.running(EpisodeContext.of(work(), 0)):
            await runner.run(work().task, base_url=opened.base_url, api_key=opened.api_key)
        await runner.close()


async def test_a_reward_may_be_awaited_as_a_task_and_an_agents_own_error_comes_first():
    async with opened_gateway() as harness:
        await harness.engine("inference_worker-0", FixedTextEngine())
        engine = engine_of(await harness.open())
        async with ArealOpenAI(engine) as client:
            answer = await asked(client)
            await asyncio.create_task(client.set_reward(answer.id, 0.5))
            await asyncio.gather(client.set_last_reward(0.25))
            assert [turn.reward for turn in await client.get_interactions()] == [0.25]

        async def forget(error=None):
            async with ArealOpenAI(engine) as client:
                client.set_last_reward(1.0)
                if error:
                    raise error

        with pytest.raises(RewardError, match=r"set_last_reward\(1.0\) at test_workflow.py:\d+ was not awaited"):
            await forget()
        with pytest.raises(ValueError, match="its own error"):
            await forget(ValueError("its own error"))
