"""Clients with no key, a placeholder or a key of another service: the address of an agent has its session."""

from __future__ import annotations

import pytest
from support.areal_programs import episode
from support.fake_engine import FixedTextEngine

from areal_actors.core.proxies import EXCEPTIONS
from areal_actors.core.values import Task
from areal_actors.rollout.agent_process import AgentProgram
from areal_actors.rollout.client_environment import KEYS, set_client_environment
from areal_actors.rollout.inline_runner import InlineRunner
from areal_actors.rollout.own_loop_runner import OwnLoopRunner
from areal_actors.rollout.subprocess_runner import SubprocessRunner

FOREIGN = "sk-proj-0123456789abcdefABCDEF"
PROGRAM = """
import anthropic, openai

MESSAGES = [{"role": "user", "content": "hello"}]

class Agent:
    async def run(self, task, *, base_url, api_key):
        if task["sdk"] == "openai":
            async with openai.AsyncOpenAI(base_url=base_url, max_retries=0, **task["options"]) as client:
                answer = await client.chat.completions.create(model="m", messages=MESSAGES)
            return float(answer.choices[0].message.content == "hi there")
        async with anthropic.AsyncAnthropic(base_url=base_url, max_retries=0, **task["options"]) as client:
            answer = await client.messages.create(model="m", max_tokens=20, messages=MESSAGES)
        return float(answer.content[0].text == "hi there")
"""
WORKFLOW = """
from areal_actors.library.workflow import ArealOpenAI

class Agent:
    async def arun_episode(self, engine, data):
        async with ArealOpenAI(engine, api_key="EMPTY") as client:
            answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])
        return float(answer.choices[0].message.content == "hi there")
"""


async def play(program, folder, way, rows):
    """The rewards of a program for these rows, all in one session."""
    (folder / "program.py").write_text(program)
    async with episode(FixedTextEngine()) as (_, opened, _):
        if way == "inline":
            runner = OwnLoopRunner(InlineRunner.from_name("program.py:Agent", folder))
        else:
            runner = SubprocessRunner(AgentProgram(agent="program.py:Agent", root=str(folder)), processes=1)
        await runner.start()
        try:
            tasks = [Task(id="t", data=row) for row in rows]
            return [(await runner.run(task, base_url=opened.base_url, api_key=opened.api_key)).reward for task in tasks]
        finally:
            await runner.close()


@pytest.mark.parametrize(
    ("environment", "given"),
    [("", ({}, {"api_key": "EMPTY"}, {"api_key": FOREIGN})), ("EMPTY", ({},)), (FOREIGN, ({},))],
    ids=["no key in the environment", "a placeholder there", "a foreign one there"],
)
@pytest.mark.parametrize("way", ["inline", "subprocess"])
async def test_a_client_with_any_key_or_none_calls_the_session_of_its_address(
    tmp_path, monkeypatch, environment, given, way
):
    for name in (*KEYS, *EXCEPTIONS):
        monkeypatch.setenv(name, environment)
        if not environment or name not in KEYS:
            monkeypatch.delenv(name)
    set_client_environment()
    rows = [{"sdk": sdk, "options": options} for sdk in ("openai", "anthropic") for options in given]
    assert await play(PROGRAM, tmp_path, way, rows) == [1.0] * len(rows)


@pytest.mark.parametrize("way", ["inline", "subprocess"])
async def test_the_client_of_a_workflow_takes_any_key(tmp_path, way):
    assert await play(WORKFLOW, tmp_path, way, [{}]) == [1.0]
