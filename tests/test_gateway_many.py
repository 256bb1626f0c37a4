"""Two hundred concurrent agents, some of which disconnect, retry or give up: none gets another's answer."""

from __future__ import annotations

import asyncio
import hashlib
import random

import aiohttp
import openai
import pytest
from support.fake_engine import FixedTextEngine
from support.gateway_harness import client, opened_gateway
from support.samples import letters, work

from areal_actors.core.values import unpack_ids
from areal_actors.gateway.settings import GatewaySettings

SESSIONS, TURNS = 200, 5


def answer_to(prompt: str) -> str:
    """The toy model's answer is a hash of the whole prompt, so that an answer identifies its prompt."""
    return hashlib.sha256(prompt.encode()).hexdigest()[:8]


class PromptHashEngine(FixedTextEngine):
    """Answers slowly, each call at its own pace."""

    def __init__(self, pause=0.002):
        super().__init__()
        self.dice = random.Random(7)
        self.pause = pause
        self.count = 0

    def begun(self):
        self.count += 1

    def answer(self, prompt):
        return answer_to(prompt) + "\n"

    async def before(self, place):
        await asyncio.sleep(self.dice.random() * self.pause)


class Agent:
    """Talks for some turns; checks every answer against what only its own conversation gives."""

    def __init__(self, number, opened):
        self.number, self.opened = number, opened
        self.dice = random.Random(number)
        self.messages = []
        self.ids = []

    async def run(self):
        async with client(self.opened, max_retries=4) as agent:
            for turn in range(TURNS):
                self.messages.append({"role": "user", "content": f"session {self.number} turn {turn}"})
                if self.dice.random() < 0.25:
                    await self.hang_up(agent)
                identifier, text = await (self.streamed(agent) if self.dice.random() < 0.4 else self.whole(agent))
                assert text == answer_to(letters().render(self.messages))
                self.ids.append(identifier)
                self.messages.append({"role": "assistant", "content": text})

    async def hang_up(self, agent):
        """Ask, and leave before the answer is whole."""
        stream = await agent.chat.completions.create(model="m", messages=self.messages, stream=True)
        await anext(stream)
        await stream.close()

    async def whole(self, agent):
        name = f"{self.number}-{len(self.messages)}"
        options = {"extra_headers": {"Idempotency-Key": name}}
        if self.dice.random() < 0.2:
            with pytest.raises(openai.APITimeoutError):
                await agent.with_options(timeout=0.003, max_retries=0).chat.completions.create(
                    model="m", messages=self.messages, **options
                )
        answer = await agent.chat.completions.create(model="m", messages=self.messages, **options)
        again = await agent.chat.completions.create(model="m", messages=self.messages, **options)
        assert (again.id, again.choices) == (answer.id, answer.choices)
        return answer.id, answer.choices[0].message.content

    async def streamed(self, agent):
        text, identifier = "", ""
        async for chunk in await agent.chat.completions.create(model="m", messages=self.messages, stream=True):
            identifier = chunk.id
            text += chunk.choices[0].delta.content or ""
        return identifier, text


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.slow
async def test_two_hundred_concurrent_agents_never_get_each_other_s_answers():
    async with opened_gateway(GatewaySettings()) as harness:
        engine = await harness.engine("inference_worker-0", PromptHashEngine())
        runs = [work(f"{number}.0") for number in range(SESSIONS)]
        agents = [Agent(number, await harness.open(run, lease=3600)) for number, run in enumerate(runs)]
        await asyncio.gather(*[agent.run() for agent in agents])
        for agent, run in zip(agents, runs, strict=True):
            turns = (await harness.trajectory(agent.opened, run=run)).interactions
            assert [turn.id for turn in turns] == agent.ids, "calls that were left or asked twice are no interactions"
            assert [turn.parent for turn in turns] == ["", *agent.ids[:-1]]
            seen = "".join(
                chr(token)
                for turn in turns
                for token in (*unpack_ids(turn.prompt_suffix), *turn.completion.ids_array())
            )
            assert seen == letters().render(agent.messages, add_generation_prompt=False)
        assert engine.running == 0


async def test_a_client_that_left_and_asks_again_leaves_one_interaction():
    async with opened_gateway() as harness:
        await harness.engine("inference_worker-0", PromptHashEngine())
        opened = await harness.open()
        async with client(opened) as agent:
            for _ in range(3):
                with pytest.raises(openai.APITimeoutError):
                    await agent.with_options(timeout=0.002).chat.completions.create(
                        model="m", messages=[{"role": "user", "content": "a"}]
                    )
            await agent.chat.completions.create(model="m", messages=[{"role": "user", "content": "a"}])
        assert len((await harness.trajectory(opened)).interactions) == 1


async def test_a_slow_reader_delays_no_other():
    async with opened_gateway() as harness:
        await harness.engine("inference_worker-0", PromptHashEngine())
        opened = await harness.open()
        body = {"model": "m", "messages": [{"role": "user", "content": "a"}], "stream": True}
        headers = {"Authorization": f"Bearer {opened.api_key}"}
        url = opened.base_url + "/chat/completions"
        async with aiohttp.ClientSession(read_bufsize=1) as http, http.post(url, json=body, headers=headers) as slow:
            async with client(opened) as agent, asyncio.timeout(300):
                await agent.chat.completions.create(model="m", messages=[{"role": "user", "content": "b"}])
            assert b"[DONE]" in await slow.read()


async def test_the_engine_stops_when_the_client_has_left():
    async with opened_gateway() as harness:
        engine = await harness.engine("inference_worker-0", PromptHashEngine(pause=60.0))
        opened = await harness.open()
        async with client(opened) as agent, asyncio.timeout(300):
            asking = asyncio.create_task(
                agent.chat.completions.create(model="m", messages=[{"role": "user", "content": "a"}])
            )
            while not engine.running:  # noqa: ASYNC110 - the engine has no event for it
                await asyncio.sleep(0.005)
            asking.cancel()
            await asyncio.wait({asking})
        assert engine.count == 1
        async with asyncio.timeout(300):
            while engine.running:  # noqa: ASYNC110 - the engine has no event for it
                await asyncio.sleep(0.005)
