"""A gateway with a real tokenizer before an engine that plays a script as a real one would: stops, top tokens, failover."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import anthropic
import numpy as np
import openai
from support.framework_harness import CONTEXT, SECRET, ChatGatewayHarness
from support.samples import published

from areal_actors.core.errors import EngineError, RequestError
from areal_actors.core.settings import GatewaySettings
from areal_actors.core.values import TokenColumns, pack_ids
from areal_actors.gateway.session_manager import SessionManager
from areal_actors.generation.engine import SAMPLING_ABILITIES, EngineCounters, TokenChunk
from areal_actors.tokenization.tokenizer import TextStream


class SharedScript:
    """Script that several engines share, and the requests that they received."""

    def __init__(self, chat):
        self.chat = chat
        self.lines = []
        """Texts, ids, or errors; one for each completion."""
        self.begun = {}
        """Completion of each prompt and seed, for an engine that takes over."""
        self.prompts, self.sampling, self.taken_over = [], [], []


class SharedScriptEngine:
    """See `GenerationEngine`: token by token when streamed; can be held before the token `hold_at`."""

    abilities = SAMPLING_ABILITIES

    def __init__(self, script, hold_at=-1):
        self.script, self.chat, self.hold_at = script, script.chat, hold_at
        self.held, self.go_on = asyncio.Event(), asyncio.Event()
        self.weight_version = -1

    async def generate(self, request_id, prompt_ids, sampling, *, stream=False, sampled=0):
        script, prompt = self.script, tuple(prompt_ids[: len(prompt_ids) - sampled])
        script.prompts.append(list(prompt_ids))
        script.sampling.append(sampling)
        script.taken_over.append(sampled)
        if (prompt, sampling.seed) not in script.begun:
            if not script.lines:
                raise EngineError("the script is at its end")
            if isinstance(line := script.lines.pop(0), Exception):
                raise line
            script.begun[prompt, sampling.seed] = line if isinstance(line, list) else [*self.chat.encode(line), *self.chat.stop_ids]
        ids, reason = self.cut(script.begun[prompt, sampling.seed], sampling, sampled)
        start, versions = sampled, []
        for place in range(sampled, len(ids)):
            if place == self.hold_at:
                self.held.set()
                await self.go_on.wait()
            versions.append(self.weight_version)
            if stream and place + 1 < len(ids):
                yield self.chunk(ids, start, place + 1, versions, sampling.top_logprobs)
                start, versions = place + 1, []
        if not stream:
            del script.begun[prompt, sampling.seed]
        yield self.chunk(ids, start, len(ids), versions, sampling.top_logprobs, reason)

    def cut(self, ids, sampling, sampled):
        """Up to and with the token that completes a stop string, ends the turn, or is the last that may come."""
        text = TextStream(self.chat, sampling.stop, special=True)
        for place, token in enumerate(ids[: sampled + sampling.max_tokens]):
            text.push([token])
            if text.matched or token in self.chat.stop_ids:
                return ids[: place + 1], "stop"
        return ids[: sampled + sampling.max_tokens], "length"

    def chunk(self, ids, start, end, versions, top, reason=""):
        logprobs = np.array([logprob_at(place) for place in range(start, end)])
        others = [(token + other) % 500 for token in ids[start:end] for other in range(top)]
        return TokenChunk(
            columns=TokenColumns.of(ids[start:end], logprobs, versions),
            top_ids=pack_ids(others),
            top_logprobs=np.repeat(logprobs, top).astype("<f4").tobytes(),
            finish_reason=reason,
        )

    async def load_weights(self, location, weight_version):
        self.weight_version = weight_version

    def take_counters(self):
        return EngineCounters()

    async def close(self):
        pass


def logprob_at(place):
    """The log-probability of the token in this place of a completion."""
    return -(place + 1) / 8


class ScriptedGatewayHarness(ChatGatewayHarness):
    """A chat gateway for several engines; `chat` may be another model's."""

    def __init__(self, chat=None):
        super().__init__()
        self.chat = chat or self.chat
        self.manager = SessionManager(GatewaySettings(), lambda folder: self.chat, secret=SECRET, max_model_len=CONTEXT)
        self.script = SharedScript(self.chat)

    async def add_engine(self, number=0, **options):
        return await self.engine(f"inference_worker-{number}", SharedScriptEngine(self.script, **options))

    def text(self, ids):
        return self.chat.decode(list(ids), skip_special=False)


@asynccontextmanager
async def opened_scripted_gateway(chat=None, **options):
    harness = ScriptedGatewayHarness(chat)
    try:
        await harness.serve("session_manager-0", harness.manager)
        await harness.publish(published(0))
        harness.first = await harness.add_engine(**options)
        yield harness
    finally:
        for task in harness.tasks.values():
            task.cancel()
        await asyncio.wait(harness.tasks.values())


@asynccontextmanager
async def clients(opened):
    """Both SDKs, for one session."""
    async with (
        openai.AsyncOpenAI(base_url=opened.base_url, api_key=opened.api_key, max_retries=0) as theirs,
        anthropic.AsyncAnthropic(base_url=opened.base_url.removesuffix("/v1"), api_key=opened.api_key, max_retries=0) as others,
    ):
        yield theirs, others


def wrong(field):
    """Error of an engine that does not support a field."""
    return RequestError(f"'{field}' is wrong", field)
