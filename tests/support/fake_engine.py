"""One fake generation engine; its subclasses decide which tokens come: a fixed text, the lines of a script,
anything."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np

from areal_actors.core.errors import EngineError
from areal_actors.core.values import TokenColumns, pack_ids
from areal_actors.generation.abilities import SAMPLING_ABILITIES
from areal_actors.generation.engine import EngineCounters, TokenChunk
from areal_actors.tokenization.tokenizer import TextStream


class FakeEngine:
    """See `GenerationEngine`: token by token when streamed; can be held before the token `hold_at` of a completion."""

    abilities = SAMPLING_ABILITIES

    def __init__(self, hold_at=-1):
        self.hold_at = hold_at
        self.held, self.go_on = asyncio.Event(), asyncio.Event()
        self.weight_version = -1
        self.running = self.most = 0
        """Completions in progress, now and at most."""
        self.prompts, self.asked = [], []

    async def completion(self, prompt_ids, sampling, resumed):
        """All ids of a completion, those included that another engine sampled before, and its finish reason."""
        raise NotImplementedError

    def begun(self):
        """One more runs."""

    def logprob(self, place):
        """Log-probability of the token in this place of a completion."""
        return -0.5

    async def generate(self, request_id, prompt_ids, sampling, *, stream=False, resumed_tokens=0):
        self.prompts.append(list(prompt_ids))
        self.asked.append(sampling)
        self.running += 1
        self.most = max(self.most, self.running)
        self.begun()
        try:
            ids, reason = await self.completion(prompt_ids, sampling, resumed_tokens)
            start, versions = resumed_tokens, []
            for place in range(resumed_tokens, len(ids)):
                await self.before(place)
                versions.append(self.weight_version)
                if stream and place + 1 < len(ids):
                    yield self.chunk(ids, start, versions, sampling.top_logprobs)
                    start, versions = place + 1, []
            yield self.chunk(ids, start, versions, sampling.top_logprobs, reason)
        finally:
            self.running -= 1

    async def before(self, place):
        """Wait before a token of the completion."""
        if place == self.hold_at:
            self.held.set()
            await self.go_on.wait()

    def chunk(self, ids, start, versions, top, reason=""):
        end = start + len(versions)
        logprobs = np.array([self.logprob(place) for place in range(start, end)])
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


class FixedTextEngine(FakeEngine):
    """Generates a fixed text, ended by a newline, with letters for tokens; `texts` are its prompts."""

    def __init__(self, text="hi there", hold_at=-1):
        super().__init__(hold_at)
        self.text = text + "\n"

    @property
    def texts(self):
        return ["".join(map(chr, ids)) for ids in self.prompts]

    def answer(self, prompt):
        """The whole answer to a prompt."""
        return self.text

    async def completion(self, prompt_ids, sampling, resumed):
        prompt = "".join(map(chr, prompt_ids))
        done = len(prompt) - prompt.rindex("a:") - 2
        ids = [ord(letter) for letter in self.answer(prompt[: len(prompt) - resumed])]
        cut = ids[done - resumed : done + sampling.max_tokens]
        return cut, "stop" if cut[-1:] == [ord("\n")] else "length"


class Script:
    """The lines of one or more engines, one for each completion, and the requests that they received."""

    def __init__(self, chat):
        self.chat = chat
        self.lines = []
        """Texts, ids, or errors."""
        self.begun = {}
        """Completion of each prompt and seed, for an engine that takes over."""
        self.prompts, self.sampled, self.sampling, self.taken_over = [], [], [], []

    def clear(self):
        """Forget what was received."""
        for received in (self.prompts, self.sampled, self.sampling, self.taken_over):
            received.clear()


class ScriptEngine(FakeEngine):
    """Generates the lines of a script as a real engine does: stop strings, top tokens, failover."""

    def __init__(self, script, hold_at=-1):
        super().__init__(hold_at)
        self.script, self.chat = script, script.chat

    def logprob(self, place):
        return logprob_at(place)

    async def completion(self, prompt_ids, sampling, resumed):
        script, key = self.script, (tuple(prompt_ids[: len(prompt_ids) - resumed]), sampling.seed)
        script.prompts.append(list(prompt_ids))
        script.sampling.append(sampling)
        script.taken_over.append(resumed)
        if key not in script.begun:
            if not script.lines:
                raise EngineError("the script is at its end")
            if isinstance(line := script.lines.pop(0), Exception):
                raise line
            script.begun[key] = line if isinstance(line, list) else [*self.chat.encode(line), *self.chat.stop_ids]
        ids, reason = self.cut(script.begun[key], sampling, resumed)
        script.sampled.append(ids[resumed:])
        return ids, reason

    def cut(self, ids, sampling, resumed):
        """Up to and with the token that completes a stop string, ends the turn, or is the last that may come."""
        text = TextStream(self.chat, sampling.stop, special=True)
        for place, token in enumerate(ids[: resumed + sampling.max_tokens]):
            text.push([token])
            if text.matched or token in self.chat.stop_ids:
                return ids[: place + 1], "stop"
        return ids[: resumed + sampling.max_tokens], "length"

    async def generate(self, request_id, prompt_ids, sampling, *, stream=False, resumed_tokens=0):
        async with contextlib.aclosing(
            super().generate(request_id, prompt_ids, sampling, stream=stream, resumed_tokens=resumed_tokens)
        ) as chunks:
            async for chunk in chunks:
                if chunk.finish_reason:  # a repeated question is a new one
                    self.script.begun.pop((tuple(prompt_ids[: len(prompt_ids) - resumed_tokens]), sampling.seed), None)
                yield chunk


def logprob_at(place):
    """The log-probability of the token in this place of a scripted completion."""
    return -(place + 1) / 8
