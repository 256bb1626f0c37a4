"""A relay before the gateway that cuts silent connections, and an engine that is silent before its first token for
three times as long."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import anthropic
import openai
import pytest
from support.fake_engine import FixedTextEngine
from support.gateway_harness import HELLO, opened_gateway, root
from support.samples import work
from support.silent_relay import SilentRelay

from areal_actors.core.values import SamplingParams
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.messages import EpisodeAbandoned
from areal_actors.rollout.inline_runner import InlineRunner
from areal_actors.rollout.rollout_worker import RolloutWorker

ANSWER = "hi there"


async def chat(theirs, _):
    async with await theirs.chat.completions.create(model="m", messages=HELLO, stream=True) as stream:
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def responses(theirs, _):
    async with theirs.responses.stream(model="m", input="hello") as stream:
        return (await stream.get_final_response()).output_text


async def messages(_, others):
    async with others.messages.stream(model="m", messages=HELLO, max_tokens=20) as stream:
        return (await stream.get_final_message()).content[0].text


async def completions(theirs, _):
    stream = await theirs.completions.create(model="m", prompt="u:hello\na:", stream=True)
    return "".join([chunk.choices[0].text async for chunk in stream])


PROTOCOLS = (chat, responses, messages, completions)


@asynccontextmanager
async def relayed(keep_alive_seconds):
    """A gateway with an engine that samples no token until `go_on`, behind a relay."""
    async with opened_gateway(GatewaySettings(keep_alive_seconds=keep_alive_seconds)) as harness:
        engine = await harness.engine("inference_worker-0", FixedTextEngine(hold_at=0))
        opened = await harness.open(lease=3600)
        async with SilentRelay(urlsplit(opened.base_url).port) as relay:
            yield harness, engine, opened, relay


async def silence(engine, relay):
    """Three times the silence that the relay bears, before the first token."""
    await engine.held.wait()
    since = relay.ticks
    # The relay counts turns, it has no event for a number of them
    while relay.ticks < since + 3 * relay.limit:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


@asynccontextmanager
async def clients(opened, relay):
    sent = {"api_key": opened.api_key, "max_retries": 0}
    async with (
        openai.AsyncOpenAI(base_url=relay.url(opened.base_url), **sent) as theirs,
        anthropic.AsyncAnthropic(base_url=relay.url(root(opened)), **sent) as others,
    ):
        yield theirs, others


async def test_streams_in_every_protocol_outlive_a_relay_that_cuts_silent_connections():
    async with relayed(0.05) as (harness, engine, opened, relay), clients(opened, relay) as pair:
        calls = [asyncio.create_task(protocol(*pair)) for protocol in PROTOCOLS]
        await silence(engine, relay)
        assert (relay.cut, [call.done() for call in calls]) == (0, [False] * len(PROTOCOLS))
        engine.go_on.set()
        assert await asyncio.gather(*calls) == [ANSWER] * len(PROTOCOLS)
        assert len(harness.recorded()) == len(PROTOCOLS)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_without_signs_of_life_the_relay_cuts_a_stream_and_its_client_raises(protocol):
    async with relayed(1000.0) as (harness, _, opened, relay), clients(opened, relay) as pair:
        with pytest.raises(Exception, match=r"(?i)connection|peer closed|disconnected"):
            await protocol(*pair)
        assert relay.cut
        assert not harness.recorded()


class Whole:
    """One call whose answer is not streamed, through the relay."""

    relay: SilentRelay

    async def run(self, task, *, base_url, api_key):
        async with openai.AsyncOpenAI(base_url=self.relay.url(base_url), api_key=api_key, max_retries=0) as client:
            await client.chat.completions.create(model="m", messages=HELLO)
        return 1.0


async def test_a_call_that_is_not_streamed_is_cut_and_the_attempt_fails_by_the_client_s_error():
    async with relayed(0.05) as (harness, _, _, relay):
        agent = Whole()
        agent.relay = relay
        worker = RolloutWorker(InlineRunner(agent, "whole"), concurrency=1, timeout_seconds=600.0)
        await harness.serve("rollout_worker-0", worker)
        end = harness.until(EpisodeAbandoned)
        await harness.publish(work("1.0", sampling=SamplingParams(max_tokens=20)))
        async with asyncio.timeout(300):
            lost = await end
        assert relay.cut
        assert "agent whole raised APIConnectionError: Connection error. at test_gateway_relay.py:" in lost.detail, (
            lost.detail
        )
        assert not harness.recorded()
