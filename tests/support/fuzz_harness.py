"""A gateway in a thread of its own, for tests that call it as strangers would: over sockets, each call under a
deadline."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import threading
from contextlib import contextmanager, suppress
from urllib.parse import unquote

import numpy as np
from support.fake_engine import FakeEngine
from support.framework_harness import chat_tokenizer
from support.gateway_harness import ADMIN, GatewayHarness
from support.samples import TOOLS_TEMPLATE, letters, work

from areal_actors.core.values import SamplingParams
from areal_actors.embedded.constraints import Grammars
from areal_actors.gateway.sessions.capacity import ExternalCapacity
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.generation.engine import validate_prompt

DEADLINE = 10.0
CONTEXT = 3000
TEXTS = (
    "hi there",
    'Well.\n<tool_call>\n{"name": "f", "arguments": {"x": [1, {"y": null}]}}\n</tool_call>',
    '<tool_call>\n{"name": "f"',
    "<think>\nhm\n</think>\n\n\u4f60\u597d \U0001f600",
)


class RandomTextEngine(FakeEngine):
    """Generates random texts; follows constraints, reports top log-probabilities and validates requests as real engines
    do."""

    def __init__(self, chat):
        super().__init__()
        self.chat = chat
        self.dice = random.Random(1)
        self.grammars = Grammars(chat, chat.vocabulary_size)
        self.moment = asyncio.Event()
        self.moment.set()

    async def completion(self, prompt_ids, sampling, resumed):
        validate_prompt(prompt_ids, sampling, resumed, self.chat.vocabulary_size, CONTEXT)
        matcher, before = None, list(prompt_ids[len(prompt_ids) - resumed :])
        if sampling.constraint is not None:
            matcher = await asyncio.to_thread(self.grammars.matcher, sampling.constraint, before)
        await self.moment.wait()
        whole = (
            self.constrained(matcher) if matcher else [*self.chat.encode(self.dice.choice(TEXTS)), *self.chat.stop_ids]
        )
        ids = whole[resumed:][: sampling.max_tokens] or [self.chat.stop_ids[0]]
        return before + ids, "stop" if ids[-1] in self.chat.stop_ids else "length"

    async def before(self, place):
        await asyncio.sleep(0)

    def constrained(self, matcher):
        ids = []
        while len(ids) < 40:
            ids.append(self.dice.choice(np.flatnonzero(matcher.allowed_mask()).tolist()))
            if ids[-1] in self.chat.stop_ids:
                break
            matcher.accept_tokens(ids[-1:])
        return ids


class FuzzHarness(GatewayHarness):
    """See `GatewayHarness`: sessions for agents of the run and for others, in a thread of its own."""

    def __init__(self, chat):
        capacity = ExternalCapacity(1, slots=100_000)
        config = GatewaySettings(unknown_fields="refuse")
        super().__init__(
            config, chat=chat, max_model_len=CONTEXT, capacity=capacity, sampling=SamplingParams(max_tokens=50)
        )
        self.episodes = 0
        self.admin = ADMIN
        self.loop = asyncio.new_event_loop()
        self.trouble = []
        self.loop.set_exception_handler(lambda _, context: self.trouble.append(context))
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def inside(self, coroutine, seconds=DEADLINE):
        """Run this where the gateway runs."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(seconds)

    async def begin(self):
        await super().begin()
        self.random_engine = await self.engine("inference_worker-0", RandomTextEngine(self.chat))
        self.opened = await self.fresh()
        self.other = await self.fresh()
        await self.soon(lambda: self.manager.external.caught_up)
        self.host, _, port = self.manager.gateway.root.removeprefix("http://").partition(":")
        self.port = int(port)

    async def fresh(self):
        """A session of an agent of the run; evaluation may sample at any temperature, so that such requests go through,
        too."""
        self.episodes += 1
        run = work(f"inside-{self.episodes}.0", purpose="evaluate", sampling=SamplingParams(max_tokens=50))
        return await self.open(run, lease=600)

    def started(self, **body):
        """A session of an agent outside the run, over HTTP."""
        status, opened = self.call("POST", "/rl/start_session", {"task_id": "t", **body}, key=self.admin)
        assert status == 200, opened
        return opened

    def call(self, method, path, body=None, *, key=None, headers=None):
        """Status and decoded answer of a call on a connection of its own."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=DEADLINE)
        try:
            return self.call_on(connection, method, path, body, key=key, headers=headers)
        finally:
            connection.close()

    def call_on(self, connection, method, path, body=None, *, key=None, headers=None):
        """The same on this connection."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.putrequest(method, path, skip_host="Host" in (headers or {}), skip_accept_encoding=True)
        sent = {
            "Authorization": f"Bearer {self.opened.api_key if key is None else key}",
            "Content-Type": "application/json",
        }
        for name, value in (sent | (headers or {})).items():
            connection.putheader(name, value)
        if data is not None:
            connection.putheader("Content-Length", str(len(data)))
        connection.endheaders(data)
        answer = connection.getresponse()
        return answer.status, read(answer)

    def check_alive(self):
        """It still serves, nothing is in flight, and nothing has failed unnoticed."""
        for task in self.tasks.values():
            assert not task.done()
        hello = [{"role": "user", "content": "hello"}]
        opened = self.started()
        for path, body in (
            ("/v1/chat/completions", {"messages": hello}),
            ("/v1/messages", {"messages": hello, "max_tokens": 5}),
            ("/v1/responses", {"input": "hello"}),
        ):
            status, answer = self.call("POST", path, body, key=opened["api_key"])
            assert status == 200, answer
        assert self.call("POST", "/rl/set_reward", {"reward": 1}, key=opened["api_key"])[0] == 200
        assert self.call("POST", "/rl/end_session", {}, key=opened["api_key"])[1]["interaction_count"] == 3
        self.inside(self.quiet())
        assert not self.trouble, self.trouble

    async def quiet(self):
        """Nothing is in flight, in the gateway and in the engine."""
        sessions = self.manager.registry._sessions
        await self.soon(
            lambda: not self.random_engine.running and not any(session.running for session in sessions.values())
        )

    async def soon(self, condition):
        """Wait until it holds."""
        async with asyncio.timeout(DEADLINE):
            while not condition():  # noqa: ASYNC110 - of anything
                await asyncio.sleep(0.005)


def read(answer):
    """The body of an answer, decoded if it is JSON."""
    text = answer.read()
    if answer.headers.get_content_type() == "application/json" and text:
        return json.loads(text)
    return text


def assert_answered(path, status, reply):
    """No answer is a failure of the gateway's own; every refusal has the shape of the protocol that was called."""
    assert status < 500, (path, status, reply)
    if status < 400 or reply == b"":
        return
    error = reply["error"]
    path = unquote(path)
    if "/messages" in path and "/completions" not in path and "/responses" not in path:
        assert reply["type"] == "error", reply
        assert error.keys() in ({"type", "message"}, {"type", "message", "field"}), reply
    elif "/messages" not in path:
        assert error.keys() == {"message", "type", "param", "code"}, reply
    assert error["message"], reply
    assert error["type"], reply


@contextmanager
def opened_fuzz_gateway(chat=None):
    """A gateway that answers, with letters for tokens unless another tokenizer is given."""
    harness = FuzzHarness(chat or letters(template=TOOLS_TEMPLATE))
    harness.thread.start()
    try:
        harness.inside(harness.begin())
        yield harness
    finally:
        with suppress(Exception):
            harness.inside(harness.end())
        harness.loop.call_soon_threadsafe(harness.loop.stop)
        harness.thread.join(DEADLINE)
        harness.loop.close()


def embedded():
    """The embedded model's tokenizer and chat template, which knows tools."""
    return chat_tokenizer()
