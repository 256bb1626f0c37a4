"""A gateway with a real tokenizer before an engine that follows a script; agents in this and in other interpreters."""

from __future__ import annotations

import asyncio
import functools
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.gateway_harness import GatewayHarness
from support.samples import published, work

from areal_actors.core.errors import EngineError
from areal_actors.core.loading import load_named
from areal_actors.core.settings import GatewaySettings
from areal_actors.core.values import SamplingParams, Task, TokenColumns, unpack_ids
from areal_actors.embedded.embedded_model import CHAT_TEMPLATE, TURN_END, train_tokenizer
from areal_actors.gateway.session_manager import SessionManager
from areal_actors.gateway.sessions.capacity import ExternalCapacity
from areal_actors.gateway.sessions.keys import admin_key
from areal_actors.generation.engine import SAMPLING_ABILITIES, EngineCounters, TokenChunk
from areal_actors.rollout.agent_process import AgentProgram
from areal_actors.rollout.subprocess_runner import SubprocessRunner
from areal_actors.tokenization.tokenizer import ChatTokenizer

ROOT = Path(__file__).parents[2]
CONTEXT = 20_000
SECRET = b"secret"
ADMIN = admin_key(SECRET)
FINAL = "9 * 2 = 18\n#### 18"


def call(name, arguments):
    """A tool call as the model writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@functools.cache
def chat_tokenizer():
    tokenizer = train_tokenizer(("answer", "tools"))
    return ChatTokenizer(tokenizer, CHAT_TEMPLATE, {"eos_token": TURN_END}, [tokenizer.token_to_id(TURN_END)])


class FakeEngine:
    """Generates the texts of its script, one for each call; records prompts and sampled ids."""

    abilities = SAMPLING_ABILITIES

    def __init__(self, chat):
        self.chat = chat
        self.weight_version = -1
        self.script: list[str] = []
        self.prompts: list[list[int]] = []
        self.sampled: list[list[int]] = []
        self.asked: list[SamplingParams] = []

    async def generate(self, request_id, prompt_ids, sampling, *, stream=False, sampled=0):
        if not self.script:
            raise EngineError("the script is at its end, and the framework goes on asking")
        whole = [*self.chat.encode(self.script.pop(0)), *self.chat.stop_ids]
        ids = whole[: sampling.max_tokens]
        self.prompts.append(list(prompt_ids))
        self.sampled.append(ids)
        self.asked.append(sampling)
        pieces = [[number] for number in ids] if stream else [ids]
        for place, piece in enumerate(pieces):
            columns = TokenColumns.of(piece, [-0.5] * len(piece), [self.weight_version] * len(piece))
            ended = "stop" if len(ids) == len(whole) else "length"
            reason = ended if place + 1 == len(pieces) else ""
            yield TokenChunk(columns=columns, finish_reason=reason)

    async def load_weights(self, location, weight_version):
        self.weight_version = weight_version

    def take_counters(self):
        return EngineCounters()

    async def close(self):
        pass


class ChatGatewayHarness(GatewayHarness):
    """See `GatewayHarness`; its tokenizer is a real one."""

    def __init__(self, group_size=0):
        """With a group size agents may come from outside, with the key that `ADMIN` is."""
        super().__init__(GatewaySettings())
        self.chat = chat_tokenizer()
        self.manager = SessionManager(
            GatewaySettings(),
            lambda folder: self.chat,
            secret=SECRET,
            max_model_len=CONTEXT,
            capacity=ExternalCapacity(group_size),
            sampling=SamplingParams(max_tokens=400),
        )
        self.fake_engine = FakeEngine(self.chat)
        self.episodes = 0

    async def play(self, agent, script, *, question="9 times 2?", answer=FINAL, max_tokens=400, **task):
        """Run an agent on a conversation with a scripted model; returns its result and the trajectory."""
        self.fake_engine.script = list(script)
        self.fake_engine.prompts, self.fake_engine.sampled, self.fake_engine.asked = [], [], []
        run = work(f"{self.episodes}.0", sampling=SamplingParams(max_tokens=max_tokens))
        self.episodes += 1
        opened = await self.open(run)
        row = {"question": question, "answer": answer, **task}
        returned = await agent(row, base_url=opened.base_url, api_key=opened.api_key)
        trajectory = await self.trajectory(opened, run=run)
        assert [list(turn.completion.ids_array()) for turn in trajectory.interactions] == self.fake_engine.sampled
        return returned, trajectory

    def prompt_text(self, place):
        """Prompt of the engine at a certain call."""
        return self.chat.decode(self.fake_engine.prompts[place], skip_special=False)


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
    for turn, seen, sampled in zip(trajectory.interactions, harness.fake_engine.prompts, harness.fake_engine.sampled, strict=True):
        suffix = unpack_ids(turn.prompt_suffix)
        assert suffix
        assert seen == before + suffix
        before = seen + sampled


@asynccontextmanager
async def opened_chat_gateway(group_size=0):
    harness = ChatGatewayHarness(group_size)
    try:
        await harness.serve("session_manager-0", harness.manager)
        await harness.publish(published(0))
        await harness.engine("inference_worker-0", harness.fake_engine)
        yield harness
    finally:
        for task in harness.tasks.values():
            task.cancel()
        await asyncio.wait(harness.tasks.values())


@asynccontextmanager
async def agent_here(spec):
    """An agent in this process: its `run`, and its module."""
    agent = load_named(spec, ROOT)()
    try:
        yield agent.run, sys.modules[type(agent).__module__]
    finally:
        await agent._client.close()


@asynccontextmanager
async def agent_in(environment, agent):
    """The `run` of an agent in the interpreter of an environment."""
    python = ROOT / ".environments" / environment / "bin" / "python"
    if not python.exists():
        pytest.skip(f"`just environments {environment}` makes the interpreter that this needs")
    runner = SubprocessRunner(AgentProgram(agent=agent, root=str(ROOT), python=str(python)), processes=1)
    await runner.start()

    async def run(task, *, base_url, api_key):
        result = await runner.run(Task(id="t", data=task), base_url=base_url, api_key=api_key)
        return result.output

    try:
        yield run
    finally:
        await runner.close()
