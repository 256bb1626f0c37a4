"""A gateway with a real tokenizer before an engine that follows a script; agents in this and in other interpreters."""

from __future__ import annotations

import functools
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import anthropic
import openai
import pytest
from support.fake_engine import Script, ScriptEngine
from support.gateway_harness import AUTHORITIES, GatewayHarness, opened
from support.samples import work

from areal_actors.core.loading import load_named
from areal_actors.core.values import SamplingParams, Task, unpack_ids
from areal_actors.embedded.embedded_model import CHAT_TEMPLATE, TURN_END, train_tokenizer
from areal_actors.gateway.sessions.capacity import ExternalCapacity
from areal_actors.rollout.agent_process import AgentProgram
from areal_actors.rollout.subprocess_runner import SubprocessRunner
from areal_actors.tokenization.tokenizer import ChatTokenizer

ROOT = Path(__file__).parents[2]
CONTEXT = 20_000
FINAL = "9 * 2 = 18\n#### 18"


def call(name, arguments):
    """A tool call as the model writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


ROLE_LINE = "{{- '<|im_start|>' + message.role + '\\n' + content }}"
"""Begins a message in the template of the embedded model."""
REASONING = (
    "{%- set thought = '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' if message.reasoning_content else"
    " '' %}"
)
THINKING_TEMPLATE = CHAT_TEMPLATE.replace(ROLE_LINE, REASONING + ROLE_LINE.replace("+ content", "+ thought + content"))
"""The same for a model that reasons, and whose earlier reasoning stays in the prompt."""


@functools.cache
def chat_tokenizer(template=CHAT_TEMPLATE):
    tokenizer = train_tokenizer(("answer", "tools"))
    return ChatTokenizer(tokenizer, template, {"eos_token": TURN_END}, [tokenizer.token_to_id(TURN_END)])


class ChatGatewayHarness(GatewayHarness):
    """See `GatewayHarness`; its tokenizer is a real one."""

    def __init__(self, group_size=0, *, chat=None, make_engine=ScriptEngine, hold_at=-1):
        """With a group size agents may come from outside, with the key that `ADMIN` is."""
        outside = (
            {"capacity": ExternalCapacity(group_size), "sampling": SamplingParams(max_tokens=400)} if group_size else {}
        )
        super().__init__(chat=chat or chat_tokenizer(), max_model_len=CONTEXT, **outside)
        self.script = Script(self.chat)
        self.make_engine, self.hold_at = make_engine, hold_at
        self.episodes = 0

    async def begin(self):
        await super().begin()
        self.first = await self.add_engine(hold_at=self.hold_at)

    async def add_engine(self, number=0, **options):
        return await self.engine(f"inference_worker-{number}", self.make_engine(self.script, **options))

    def text(self, ids):
        return self.chat.decode(list(ids), skip_special=False)

    async def play(self, agent, script, *, question="9 times 2?", answer=FINAL, max_tokens=400, **task):
        """Run an agent on a conversation with a scripted model; returns its result and the trajectory."""
        self.script.lines = list(script)
        self.script.clear()
        run = work(f"{self.episodes}.0", sampling=SamplingParams(max_tokens=max_tokens))
        self.episodes += 1
        opened = await self.open(run)
        row = {"question": question, "answer": answer, **task}
        returned = await agent(row, base_url=opened.base_url, api_key=opened.api_key)
        trajectory = await self.trajectory(opened, run=run)
        assert [list(turn.completion.ids_array()) for turn in trajectory.interactions] == self.script.sampled
        return returned, trajectory

    def prompt_text(self, place):
        """Prompt of the engine at a certain call."""
        return self.text(self.script.prompts[place])


def parents(trajectory):
    """For each interaction the place of the one whose conversation it continues, -1 for none."""
    places = {turn.id: place for place, turn in enumerate(trajectory.interactions)} | {"": -1}
    return [places[turn.parent] for turn in trajectory.interactions]


def prefixes(trajectory):
    """For each interaction the place of the one whose tokens it extends, -1 for none."""
    places = {turn.id: place for place, turn in enumerate(trajectory.interactions)} | {"": -1}
    return [places[turn.prefix] for turn in trajectory.interactions]


def assert_extends(harness, trajectory):
    """Each prompt is the earlier prompt, its completion, and a suffix: the tokens that the engine saw are trained."""
    assert parents(trajectory) == list(range(-1, len(trajectory.interactions) - 1))
    assert prefixes(trajectory) == parents(trajectory)
    before: list[int] = []
    for turn, seen, sampled in zip(
        trajectory.interactions, harness.script.prompts, harness.script.sampled, strict=True
    ):
        suffix = unpack_ids(turn.prompt_suffix)
        assert suffix
        assert seen == before + suffix
        before = seen + sampled


def opened_chat_gateway(group_size=0, **options):
    return opened(ChatGatewayHarness(group_size, **options))


@asynccontextmanager
async def clients(session):
    """Both SDKs, for one session."""
    async with (
        openai.AsyncOpenAI(
            base_url=session.base_url,
            api_key=session.api_key,
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(verify=AUTHORITIES),
        ) as theirs,
        anthropic.AsyncAnthropic(
            base_url=session.base_url.removesuffix("/v1"),
            api_key=session.api_key,
            max_retries=0,
            http_client=anthropic.DefaultAsyncHttpxClient(verify=AUTHORITIES),
        ) as others,
    ):
        yield theirs, others


@asynccontextmanager
async def agent_here(spec):
    """An agent in this process: its `run`, and its module."""
    agent = load_named(spec, ROOT)()
    try:
        yield agent.run, sys.modules[type(agent).__module__]
    finally:
        if hasattr(agent, "_client"):  # connections of light clients end with their event loop
            await agent._client.close()


@asynccontextmanager
async def agent_in(environment, agent, **options):
    """The `run` of an agent in the interpreter of an environment."""
    python = ROOT / ".environments" / environment / "bin" / "python"
    if not python.exists():
        pytest.skip(f"`just environments {environment}` makes the interpreter that this needs")
    runner = SubprocessRunner(
        AgentProgram(agent=agent, options=options, root=str(ROOT), python=str(python)), processes=1
    )
    await runner.start()

    async def run(task, *, base_url, api_key):
        result = await runner.run(Task(id="t", data=task), base_url=base_url, api_key=api_key)
        return result.output

    try:
        yield run
    finally:
        await runner.close()
