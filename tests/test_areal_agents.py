"""Agents of AReaL's documentation, unchanged, on the real gateway; only the engine is a toy."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.areal_programs import FUNCTION, INLINE_AGENT, SUBPROCESS_AGENT, episode
from support.camel_program import CAMEL_WORKFLOW
from support.fake_engine import FixedTextEngine
from support.samples import work

from areal_actors.compat.areal.aliases import FOLDER
from areal_actors.core.errors import AgentError
from areal_actors.core.values import Task
from areal_actors.rollout.agent_process import AgentProgram
from areal_actors.rollout.agent_runner import AgentResult
from areal_actors.rollout.inline_runner import InlineRunner
from areal_actors.rollout.own_loop_runner import OwnLoopRunner
from areal_actors.rollout.subprocess_runner import SubprocessRunner

ROOT = Path(__file__).parent.parent
CAMEL = ROOT / ".environments" / "camel" / "bin" / "python"
ROW = {"messages": [{"role": "user", "content": "hello"}], "answer": "hi there"}


@pytest.fixture
def runner_of(tmp_path, monkeypatch):
    """Makes the runner of a name in a program, in this process or in one whose `areal` is ours."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER), str(ROOT)]))

    def made(program, name, way):
        (tmp_path / "program.py").write_text(program)
        if way == "inline":
            return OwnLoopRunner(InlineRunner.from_name(f"program.py:{name}", tmp_path))
        return SubprocessRunner(AgentProgram(agent=f"program.py:{name}", root=str(tmp_path)), processes=1)

    return made


async def played(runner, opened, row=ROW):
    await runner.start()
    try:
        return await runner.run(Task(id="t", data=row), base_url=opened.base_url, api_key=opened.api_key)
    finally:
        await runner.close()


@pytest.mark.parametrize(
    ("way", "answer", "reward"), [("inline", "hi there", 1.0), ("inline", "no", 0.0), ("subprocess", "hi there", 1.0)]
)
async def test_an_agent_takes_base_url_and_http_client_and_needs_no_key(runner_of, way, answer, reward):
    async with episode(FixedTextEngine()) as (_, opened, trajectory):
        result = await played(runner_of(INLINE_AGENT, "MyAgent", way), opened, {**ROW, "answer": answer})
        assert result == AgentResult(reward=reward)
        assert [(call.reward, len(call.completion)) for call in (await trajectory(result)).interactions] == [
            (reward, len("hi there") + 1)
        ]


@pytest.mark.parametrize(
    ("parameters", "client"),
    [("**extra_kwargs", "extra_kwargs['http_client']"), ("*, base_url, api_key, http_client=None", "http_client")],
)
async def test_the_episodes_of_an_agent_share_one_http_client(tmp_path, parameters, client):
    (tmp_path / "program.py").write_text(
        f"clients = []\nclass Agent:\n    async def run(self, data, {parameters}):\n        clients.append({client})\n"
        "        return float(clients[0] is clients[-1] and not clients[0].is_closed)\n"
    )
    runner = InlineRunner.from_name("program.py:Agent", tmp_path)
    assert [await runner.run(work().task, base_url="http://h/s/v1", api_key="k") for _ in range(2)] == [
        AgentResult(reward=1.0)
    ] * 2
    client = runner._client
    await runner.close()
    assert client.is_closed


async def test_a_synchronous_agent_reads_the_address_from_the_environment(runner_of):
    async with episode(FixedTextEngine()) as (_, opened, trajectory):
        result = await played(runner_of(SUBPROCESS_AGENT, "MySyncAgent", "subprocess"), opened)
        assert (await trajectory(result)).reward == 1.0


async def test_a_function_of_the_task_alone_returns_the_reward(runner_of):
    row = {**ROW, "gconfig": {"max_new_tokens": 20, "n_samples": 1}}
    async with episode(FixedTextEngine()) as (_, opened, trajectory):
        result = await played(runner_of(FUNCTION, "run_agent_return_reward", "subprocess"), opened, row)
        assert (await trajectory(result)).reward == 1.0


async def test_a_function_submits_the_rewards_of_its_calls_itself(runner_of):
    async with episode(FixedTextEngine()) as (_, opened, trajectory):
        result = await played(runner_of(FUNCTION, "run_and_submit", "subprocess"), opened)
        assert result == AgentResult()
        assert [call.reward for call in (await trajectory(result)).interactions] == [0.0, 1.0]


@pytest.mark.skipif(not CAMEL.exists(), reason="`just environments camel` makes the interpreter that this needs")
@pytest.mark.parametrize("reward", [1.0, 0.0])
async def test_a_workflow_gives_camels_agent_the_model_of_the_episode(tmp_path, reward):
    (tmp_path / "program.py").write_text(CAMEL_WORKFLOW)
    paths = [str(FOLDER), str(ROOT), str(ROOT / "bus")]
    (tmp_path / "start.py").write_text(f"import sys\nsys.path += {paths}\nfrom program import CamelRLVRWorkflow\n")
    program = AgentProgram(agent="start.py:CamelRLVRWorkflow", root=str(tmp_path), python=str(CAMEL))
    async with episode(FixedTextEngine()) as (_, opened, trajectory):
        result = await played(
            SubprocessRunner(program, processes=1), opened, {**ROW, "answer": "hi there" if reward else "no"}
        )
        scored = await trajectory(result)
        assert [(call.reward, call.trained, len(call.completion)) for call in scored.interactions] == [
            (reward, True, len("hi there") + 1)
        ]


def test_a_function_of_the_task_alone_is_refused_where_episodes_share_the_environment(tmp_path):
    (tmp_path / "program.py").write_text("async def run_agent_return_reward(data): ...\n")
    with pytest.raises(
        AgentError, match=r"OPENAI_BASE_URL, which only `runner = \"subprocess\"` sets for each episode"
    ):
        InlineRunner.from_name("program.py:run_agent_return_reward", tmp_path)
    assert "areal" not in sys.modules
