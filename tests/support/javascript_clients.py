"""Clients in JavaScript before a gateway with a scripted model: their programs, and a conversation of ten turns."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from support.framework_harness import THINKING_TEMPLATE, ChatGatewayHarness, call, chat_tokenizer
from support.gateway_harness import opened
from support.npm_packages import install
from support.samples import work

from areal_actors.core.agent_host.agent_loader import keyed_url
from areal_actors.core.values import SamplingParams
from areal_actors.gateway.settings import GatewaySettings

PROGRAMS = Path(__file__).parent / "javascript"
PACKAGES = json.loads((PROGRAMS / "package.json").read_text())["dependencies"]
RUN_SECONDS = 120
CONTEXT = 100_000
MULTIPLY = call("multiply", '{"b":2.0 , "a":9}')
"""JSON as no client writes it."""
RUN = work(sampling=SamplingParams(max_tokens=400))


class Answer(NamedTuple):
    """An answer of the model, as a client reads it."""

    text: str = ""
    reasoning: str = ""
    calls: int = 0

    def line(self) -> str:
        """The answer as the model writes it."""
        thought = f"<think>\n{self.reasoning}\n</think>\n\n" if self.reasoning else ""
        return thought + "\n".join([*([self.text] if self.text else []), *[MULTIPLY] * self.calls])

    def read(self, *, with_reasoning: bool) -> dict[str, Any]:
        """The answer as a client's program reports it."""
        calls = [["multiply", {"a": 9, "b": 2}]] * self.calls
        return {"text": self.text, "reasoning": self.reasoning if with_reasoning else "", "calls": calls}


class Turn(NamedTuple):
    """A question, and the answers of the model until one calls no tool."""

    question: str
    answers: tuple[Answer, ...]
    stream: bool = False


TURNS = (
    Turn("9 times 2?", (Answer("18"),)),
    Turn("With the tool?", (Answer(calls=1), Answer("18 again."))),
    Turn("In pieces?", (Answer("Eighteen, é, 日本: \"18\" and 'so on'.\n\n- 18"),), stream=True),
    Turn("With the tool, in pieces?", (Answer("I multiply.", calls=1), Answer("It is 18.")), stream=True),
    Turn("Are you sure?", (Answer("I am.", reasoning="9 and 9 are 18."),)),
    Turn(
        "Check it.",
        (Answer("I check.", reasoning="The tool knows.", calls=1), Answer("18.", reasoning="It agrees.")),
        stream=True,
    ),
    Turn("Twice?", (Answer(calls=2), Answer("18, and 18.")), stream=True),
    Turn("Twice more?", (Answer("Both.", calls=2), Answer("18 and 18.", reasoning="Equal."))),
    Turn("A story?", (Answer("Nine and two met. " * 20 + "The end."),), stream=True),
    Turn("Thanks.", (Answer("You are welcome."),)),
)
LINES = [answer.line() for turn in TURNS for answer in turn.answers]


class Client(NamedTuple):
    """A client: its program, and the way it calls."""

    name: str
    program: str
    package: str
    over: str = ""
    shows_reasoning: bool = True
    ignored: frozenset[str] = frozenset()
    """Values of `x-areal-ignored` of its requests, those without one left out."""

    @property
    def version(self) -> str:
        """Version of its package."""
        version: str = PACKAGES[self.package]
        return version

    def arguments(self, session: Any) -> str:
        """The argument of its program."""
        turns = [{"question": turn.question, "stream": turn.stream} for turn in TURNS]
        return json.dumps({"baseUrl": session.base_url, "key": session.api_key, "over": self.over, "turns": turns})


def ignoring(*values: str) -> frozenset[str]:
    """Values of the header `x-areal-ignored`."""
    return frozenset(values)


EAGER = "thinking.budget_tokens, tools[].eager_input_streaming"
CLIENTS = (
    Client("openai, chat", "openai.mjs", "openai", "chat"),
    Client("openai, responses", "openai.mjs", "openai", "responses"),
    Client("openai, responses by id", "openai.mjs", "openai", "responses, by id"),
    Client("anthropic", "anthropic.mjs", "@anthropic-ai/sdk", ignored=ignoring("thinking.budget_tokens")),
    Client("langchain, chat", "langchain.mjs", "@langchain/openai", "chat"),
    Client("langchain, responses", "langchain.mjs", "@langchain/openai", "responses"),
    Client(
        "langchain, messages",
        "langchain.mjs",
        "@langchain/anthropic",
        "messages",
        ignored=ignoring("thinking.budget_tokens"),
    ),
    Client("ai, openai", "ai.mjs", "@ai-sdk/openai", "openai", shows_reasoning=False),
    Client("ai, openai, not stored", "ai.mjs", "@ai-sdk/openai", "openai, not stored"),
    Client("ai, openai, chat", "ai.mjs", "@ai-sdk/openai", "openai, chat", shows_reasoning=False),
    Client(
        "ai, anthropic", "ai.mjs", "@ai-sdk/anthropic", "anthropic", ignored=ignoring("thinking.budget_tokens", EAGER)
    ),
    Client("ai, openai-compatible", "ai.mjs", "@ai-sdk/openai-compatible", "compatible"),
)


class JavaScriptHarness(ChatGatewayHarness):
    """See `ChatGatewayHarness`; a call with `store: false` is trained."""

    def __init__(self) -> None:
        super().__init__(chat=chat_tokenizer(THINKING_TEMPLATE))
        self.manager.max_model_len = CONTEXT
        self.manager.calls.config = GatewaySettings(store_false="train")
        self.script.lines = list(LINES)


def opened_javascript_gateway():
    return opened(JavaScriptHarness())


def installed_programs(folder: Path) -> Path:
    """The folder, with the programs, their packages and Node."""
    shutil.copytree(PROGRAMS, folder, dirs_exist_ok=True)
    if refused := install(folder):
        pytest.skip(refused)
    return folder


def without_key(session: Any) -> Any:
    """The session for clients that have a placeholder for their key: its key is in the address, as agents get it."""
    return SimpleNamespace(base_url=keyed_url(session.base_url, session.api_key), api_key="EMPTY")


async def run_client(client: Client, folder: Path, session: Any) -> Any:
    """The answers that a client's program reports."""
    node = folder / "node_modules" / ".bin" / "node"
    process = await asyncio.create_subprocess_exec(
        str(node),
        client.program,
        client.arguments(session),
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(RUN_SECONDS):
            printed, problems = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, problems.decode(errors="replace")[-2000:]
    return json.loads(printed)
