"""Proxies of the environment: agents reach the gateway without them, and need no key of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.areal_programs import episode
from support.fake_engine import FixedTextEngine
from support.live_run import LiveRun

from areal_actors.core.proxies import EXCEPTIONS, describe_proxies, proxy_exceptions
from areal_actors.core.values import Task
from areal_actors.messages import EpisodeAbandoned, StepCompleted
from areal_actors.rollout.agent_process import AgentProgram
from areal_actors.rollout.client_environment import KEYS
from areal_actors.rollout.inline_runner import InlineRunner
from areal_actors.rollout.own_loop_runner import OwnLoopRunner
from areal_actors.rollout.subprocess_runner import SubprocessRunner

NOWHERE = "http://user:secret@127.0.0.1:9"
"""A proxy that does not answer."""
CLIENT = """
import {sdk}

class Agent:
    def __init__(self):
        self.client = {sdk}.{client}({options})

    async def run(self, task, *, base_url{parameters}):
        client = self.client.with_options(base_url=base_url{given})
        {call}
"""
CALLS = {
    "openai": (
        "answer = await client.chat.completions.create(model='m', messages=task['messages'])\n"
        "        return float(answer.choices[0].message.content == 'hi there')"
    ),
    "anthropic": (
        "answer = await client.messages.create(model='m', max_tokens=20, messages=task['messages'])\n"
        "        return float(answer.content[0].text == 'hi there')"
    ),
}
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture
def behind_a_proxy(monkeypatch):
    """The environment of a user who has a proxy and no keys."""
    for name in (*EXCEPTIONS, *KEYS):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name in ("http_proxy", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, NOWHERE)


@pytest.mark.parametrize("sdk", CALLS)
@pytest.mark.parametrize("parameters", [", api_key", ", api_key, http_client=None", ", **extra_kwargs"])
@pytest.mark.parametrize("way", ["inline", "subprocess"])
@pytest.mark.usefixtures("behind_a_proxy")
async def test_an_agent_reaches_the_gateway_past_the_proxy_and_without_a_key(tmp_path, sdk, parameters, way):
    if way == "subprocess" and "http_client" in parameters:
        pytest.skip("agents in processes have clients of their own")
    given = "".join(f", {name}={name}" for name in ("api_key", "http_client") if name in parameters)
    program = CLIENT.format(
        sdk=sdk,
        client="AsyncOpenAI" if sdk == "openai" else "AsyncAnthropic",
        options="max_retries=0, timeout=30",
        parameters=parameters,
        given=given,
        call=CALLS[sdk],
    )
    (tmp_path / "program.py").write_text(program)
    async with episode(FixedTextEngine()) as (_, opened, _):
        if way == "inline":
            runner = OwnLoopRunner(InlineRunner.from_name("program.py:Agent", tmp_path))
        else:
            runner = SubprocessRunner(AgentProgram(agent="program.py:Agent", root=str(tmp_path)), processes=1)
        await runner.start()
        try:
            result = await runner.run(
                Task(id="t", data={"messages": MESSAGES}), base_url=opened.base_url, api_key=opened.api_key
            )
        finally:
            await runner.close()
    assert result.reward == 1.0


def test_exceptions_are_added_to_those_of_the_user_in_both_variables():
    added = proxy_exceptions(
        {"NO_PROXY": "a.example, 10.0.0.1", "no_proxy": "b.example"}, ["https://gw.example:80", "http://[fd00::1]:1"]
    )
    assert set(added) == set(EXCEPTIONS)
    assert set(added.values()) == {"b.example,a.example,10.0.0.1,localhost,127.0.0.1,::1,gw.example,fd00::1"}
    assert proxy_exceptions({"no_proxy": "*"}) == dict.fromkeys(EXCEPTIONS, "*")


def test_proxies_are_described_without_passwords():
    assert (
        describe_proxies({"http_proxy": NOWHERE, "HTTPS_PROXY": "p:3128", "no_proxy": "x", "ALL_PROXY": ""})
        == "http_proxy=http://…@127.0.0.1:9, HTTPS_PROXY=p:3128"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("behind_a_proxy")
@pytest.mark.parametrize(
    ("command", "lines"),
    [
        (
            ("check", "gsm8k_grpo", "profile=embedded"),
            ("reward 1, 1 model calls", "http_proxy=http://…@127.0.0.1:9", "(no_proxy)"),
        ),
        (("doctor",), ("http_proxy=http://…@127.0.0.1:9", "agents reach the gateway of a run without them (no_proxy)")),
    ],
)
def test_the_command_line_names_the_proxy_and_plays_a_task_past_it(tmp_path, command, lines):
    ran = subprocess.run(
        [sys.executable, "-m", "areal_actors", *command],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=dict(os.environ),
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for line in lines:
        assert line in ran.stdout
    assert "secret" not in ran.stdout + ran.stderr


@pytest.mark.long
@pytest.mark.usefixtures("behind_a_proxy")
async def test_a_run_behind_a_proxy_that_does_not_answer_trains(tmp_path):
    run = LiveRun(tmp_path / "runs", "steps=2")
    try:
        assert await run.ended() == 0, run.output()
    finally:
        run.abort()
    log = [event for _, event in await run.log()]
    assert len([event for event in log if isinstance(event, StepCompleted)]) == 2
    assert not [event for event in log if isinstance(event, EpisodeAbandoned)]
