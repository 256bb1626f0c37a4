"""Records of unusual calls: streams that their client left, and calls with `store: false`."""

from __future__ import annotations

import asyncio

import pytest
from support.fake_engine import FixedTextEngine
from support.framework_harness import clients, opened_chat_gateway
from support.gateway_harness import HELLO, client, nothing_in_flight, opened_gateway
from support.samples import work

from areal_actors.core.values import SamplingParams
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.messages import EpisodeAbandoned, EpisodeScored


async def left_after(agent, text, messages):
    """A client that leaves a stream when it has read this text, while the engine waits."""
    read = ""
    async with await agent.chat.completions.create(model="m", messages=messages, stream=True) as stream:
        async for chunk in stream:
            read += chunk.choices[0].delta.content or ""
            if read == text:
                break


async def test_a_stream_that_its_client_left_is_a_parent_with_the_tokens_that_were_sent():
    async with opened_chat_gateway(hold_at=2) as harness:
        harness.script.lines = ["one two three", "done"]
        opened = await harness.open(run := work(sampling=SamplingParams(max_tokens=400)))
        async with clients(opened) as (agent, _):
            await left_after(agent, "one", HELLO)
            await nothing_in_flight(harness)
            harness.first.hold_at = -1
            harness.first.go_on.set()
            messages = [*HELLO, {"role": "assistant", "content": "one"}, {"role": "user", "content": "go on"}]
            await agent.chat.completions.create(model="m", messages=messages)
        left, after = (await harness.trajectory(opened, run=run)).interactions
    assert (left.finish_reason, len(left.completion), harness.text(left.completion.ids_array())) == (
        "cancelled",
        2,
        "one",
    )
    assert (after.parent, after.prefix) == (left.id, left.id)
    assert left.reward is None
    assert after.reward == 1.0
    assert {event.interaction: event.finish_reason for event in harness.recorded()} == {
        left.id: "cancelled",
        after.id: "stop",
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_its_client_left_and_asked_again_is_recorded_once(stream):
    async with opened_chat_gateway(hold_at=2) as harness:
        harness.script.lines = ["one two three", "one two three"]
        opened = await harness.open()
        async with clients(opened) as (agent, _):
            await left_after(agent, "one", HELLO)
            await nothing_in_flight(harness)
            harness.first.hold_at = -1
            harness.first.go_on.set()
            again = await agent.chat.completions.create(model="m", messages=HELLO, stream=stream)
            if stream:
                again = [chunk async for chunk in again][-1]
        assert [turn.id for turn in (await harness.trajectory(opened)).interactions] == [again.id]


async def repeat_and_finish(agent, **fields):
    """Two turns of a conversation; the fields are those of the first call."""
    first = await agent.chat.completions.create(model="m", messages=HELLO, **fields)
    messages = [
        *HELLO,
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "more"},
    ]
    await agent.chat.completions.create(model="m", messages=messages)


@pytest.mark.parametrize(("store_false", "trained"), [("skip", [False, True]), ("train", [True, True])])
async def test_a_call_with_store_false_is_recorded_and_continued_but_not_trained(store_false, trained):
    async with opened_chat_gateway() as harness:
        harness.manager.calls.config = GatewaySettings(store_false=store_false)
        harness.script.lines = ["one", "two"]
        async with clients(opened := await harness.open()) as (agent, _):
            await repeat_and_finish(agent, store=False)
        turns = (await harness.trajectory(opened)).interactions
        assert [turn.trained for turn in turns] == [event.trained for event in harness.recorded()] == trained
        assert (turns[1].parent, turns[1].prefix) == (turns[0].id, turns[0].id)


async def test_responses_with_store_false_are_not_trained_either():
    async with opened_chat_gateway() as harness:
        harness.script.lines = ["one", "two"]
        async with clients(opened := await harness.open()) as (agent, _):
            await agent.responses.create(model="m", input="a", store=False)
            await agent.responses.create(model="m", input="b")
        assert [turn.trained for turn in (await harness.trajectory(opened)).interactions] == [False, True]


async def test_an_episode_of_nothing_but_store_false_is_abandoned_with_the_remedy():
    async with opened_gateway() as harness:
        await harness.engine("inference_worker-0", FixedTextEngine())
        opened = await harness.open()
        async with client(opened) as agent:
            await agent.chat.completions.create(model="m", messages=HELLO, store=False)
        gone = harness.until(EpisodeAbandoned)
        await harness.publish(EpisodeScored(work=work(), session=opened.session, reward=1.0))
        async with asyncio.timeout(300):
            detail = (await gone).detail
    assert (
        detail
        == "all 1 calls of the episode were made with `store: false`, which are not trained; leave `store` out, or set "
        'gateway.store_false = "train" for a client that always sends it'
    )
