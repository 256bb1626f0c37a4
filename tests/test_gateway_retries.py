"""A request that a client sends again, over real HTTP: one answer, recorded once."""

from __future__ import annotations

import asyncio

import openai
import pytest
from support.framework_harness import call, clients, opened_chat_gateway
from support.gateway_harness import text_of
from support.samples import work

from areal_actors.core.errors import RequestError
from areal_actors.core.values import SamplingParams

WRONG = RequestError("'top_k' is wrong", "top_k")
"""Error of an engine that does not support a field."""


HELLO = [{"role": "user", "content": "9 times 2?"}]


SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.fixture
async def harness():
    async with opened_chat_gateway() as harness:
        yield harness


def named(name="mine"):
    return {"extra_headers": {"Idempotency-Key": name}}


async def test_asked_again_while_it_is_running_the_same_answer_comes_recorded_once():
    async with opened_chat_gateway(hold_at=1) as harness:
        harness.script.lines = ["one two", "never said"]
        opened = await harness.open()
        async with clients(opened) as (client, _):
            first = asyncio.create_task(client.chat.completions.create(model="m", messages=HELLO, **named()))
            await harness.first.held.wait()
            others = [
                asyncio.create_task(client.chat.completions.create(model="m", messages=HELLO, **named()))
                for _ in range(3)
            ]
            await asyncio.sleep(0.05)
            harness.first.go_on.set()
            answers = [await first, *[await other for other in others]]
        assert {(answer.id, answer.choices[0].message.content) for answer in answers} == {(answers[0].id, "one two")}
        assert len((await harness.trajectory(opened)).interactions) == 1
        assert not harness.manager.calls.in_progress


async def test_asked_again_while_the_first_client_leaves_it_is_answered_all_the_same():
    async with opened_chat_gateway(hold_at=1) as harness:
        harness.script.lines = ["one", "one"]
        opened = await harness.open()
        async with clients(opened) as (client, _):
            first = asyncio.create_task(client.chat.completions.create(model="m", messages=HELLO, seed=1, **named()))
            await harness.first.held.wait()
            again = asyncio.create_task(client.chat.completions.create(model="m", messages=HELLO, seed=1, **named()))
            await asyncio.sleep(0.05)
            first.cancel()
            harness.first.go_on.set()
            answer = await again
        assert [turn.id for turn in (await harness.trajectory(opened)).interactions] == [answer.id]


async def test_asked_again_after_a_failure_it_is_sampled_anew(harness):
    harness.script.lines = [WRONG, "one"]
    async with clients(await harness.open()) as (client, _):
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="m", messages=HELLO, **named())
        answer = await client.chat.completions.create(model="m", messages=HELLO, **named())
        assert answer.choices[0].message.content == "one"
    assert len(harness.recorded()) == 1


@pytest.mark.parametrize("streamed_first", [False, True])
async def test_the_answer_that_comes_again_is_the_same_in_every_field_whole_or_streamed(harness, streamed_first):
    harness.script.lines = ["Hm.\n" + call("f", '{"x": 1}'), "two Stop", "x", "yy"]
    function = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    request = {"model": "m", "messages": HELLO, "tools": [function], "logprobs": True, "top_logprobs": 1}
    async with clients(await harness.open(work(sampling=SamplingParams(max_tokens=400)))) as (client, other):
        if not streamed_first:
            await client.chat.completions.create(**request, **named())
        texts, names = await text_of(await client.chat.completions.create(**request, stream=True, **named()))
        whole = await client.chat.completions.create(**request, **named())
        assert (texts[0], names[0]) == (whole.choices[0].message.content, whole.id)
        again = await client.chat.completions.create(**request, **named())
        assert (again.choices, again.usage) == (whole.choices, whole.usage)
        assert again.choices[0].message.tool_calls[0].function.arguments == '{"x": 1}'
        assert len(again.choices[0].logprobs.content) == again.usage.completion_tokens - 1
        stopped = [
            await other.messages.create(model="m", max_tokens=9, messages=HELLO, stop_sequences=["Stop"], **named())
            for _ in range(2)
        ]
        assert stopped[0] == stopped[1]
        assert stopped[1].stop_sequence == "Stop"
        choices = [
            await client.chat.completions.create(model="m", messages=HELLO, n=2, seed=3, **named()) for _ in range(2)
        ]
        assert choices[0].choices == choices[1].choices
    assert len(harness.recorded()) == 4


async def test_a_name_is_one_request_s_and_one_session_s(harness):
    """Clients there are that name every request of theirs alike."""
    harness.script.lines = ["one", "two", "three"]
    opened, other = await harness.open(work("0.0")), await harness.open(work("1.0"))
    async with clients(opened) as (client, _), clients(other) as (stranger, _):
        one = await client.chat.completions.create(model="m", messages=HELLO, **named())
        two = await client.chat.completions.create(model="m", messages=[SYSTEM, *HELLO], **named())
        three = await stranger.chat.completions.create(model="m", messages=HELLO, **named())
        assert [answer.choices[0].message.content for answer in (one, two, three)] == ["one", "two", "three"]
        again = await client.chat.completions.create(model="m", messages=HELLO, **named())
        assert again.choices == one.choices
    assert len(harness.recorded()) == 3
