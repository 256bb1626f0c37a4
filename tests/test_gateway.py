"""The gateway as its clients meet it: the real openai client over loopback."""

from __future__ import annotations

import asyncio

import aiohttp
import openai
import pytest
from support.fake_engine import FixedTextEngine
from support.gateway_harness import HELLO, client, opened_gateway, post, root
from support.samples import work

from areal_actors.core.values import unpack_ids


@pytest.fixture
async def harness():
    async with opened_gateway() as harness:
        harness.parrot = await harness.engine("inference_worker-0", FixedTextEngine())
        yield harness


# ---------------------------------------------------------------- answers


async def test_a_chat_is_answered_and_recorded(harness):
    opened = await harness.open()
    async with client(opened) as agent:
        answer = await agent.chat.completions.create(model="m", messages=HELLO)
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason, choice.index) == (
        "assistant",
        "hi there",
        "stop",
        0,
    )
    assert (answer.object, answer.model) == ("chat.completion", "m")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (10, 9, 19)
    (recorded,) = harness.recorded()
    assert (recorded.interaction, recorded.prompt_tokens, recorded.completion_tokens) == (answer.id, 10, 9)
    trajectory = await harness.trajectory(opened)
    assert "".join(map(chr, trajectory.interactions[0].completion.ids_array())) == "hi there\n"


async def test_a_streamed_chat_comes_in_chunks_and_ends_with_usage(harness):
    opened = await harness.open()
    async with client(opened) as agent:
        stream = await agent.chat.completions.create(
            model="m", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert "".join(pieces) == "hi there"
    assert len(chunks) >= len(pieces) + 2  # after them finish reason and usage
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage.completion_tokens == 9
    assert chunks[-1].choices == []
    assert {chunk.id for chunk in chunks} == {harness.recorded()[0].interaction}


async def test_without_being_asked_a_stream_has_no_usage(harness):
    opened = await harness.open()
    async with client(opened) as agent:
        stream = await agent.chat.completions.create(model="m", messages=HELLO, stream=True)
        chunks = [chunk async for chunk in stream]
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


async def test_tokens_are_streamed_while_they_are_made(harness):
    harness.parrot.hold_at = 2
    opened = await harness.open()
    async with client(opened) as agent:
        stream = await agent.chat.completions.create(model="m", messages=HELLO, stream=True)
        text = ""
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            if text == "hi":
                assert harness.parrot.held.is_set()
                assert not harness.recorded()
                harness.parrot.go_on.set()
    assert text == "hi there"


async def test_the_second_prompt_of_a_conversation_begins_with_the_exact_tokens_of_the_first(harness):
    opened = await harness.open()
    async with client(opened) as agent:
        first = await agent.chat.completions.create(model="m", messages=HELLO)
        content = [{"type": "text", "text": first.choices[0].message.content}]
        messages = [*HELLO, {"role": "assistant", "content": content}, {"role": "user", "content": "again"}]
        stream = await agent.chat.completions.create(model="m", messages=messages, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "hi there"
    assert harness.parrot.texts == ["u:hello\na:", "u:hello\na:hi there\nu:again\na:"]
    one, two = (await harness.trajectory(opened)).interactions
    assert (one.parent, two.parent) == ("", one.id)
    assert "".join(map(chr, unpack_ids(two.prompt_suffix))) == "u:again\na:"


async def test_what_the_request_states_reaches_the_engine(harness):
    opened = await harness.open()
    async with client(opened) as agent:
        answer = await agent.chat.completions.create(
            model="m",
            messages=HELLO,
            temperature=1.0,
            top_p=0.5,
            seed=9,
            stop="!",
            max_completion_tokens=3,
            user="bob",
            n=1,
        )
    (sampling,) = harness.parrot.asked
    assert (sampling.temperature, sampling.top_p, sampling.stop, sampling.max_tokens) == (1.0, 0.5, ("!",), 3)
    assert sampling.seed != 9, "in training a seed is mixed with episode and attempt"
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("hi ", "length")


async def test_calls_of_one_session_may_overlap(harness):
    opened = await harness.open()
    async with client(opened) as agent:
        calls = [
            agent.chat.completions.create(model="m", messages=[{"role": "user", "content": f"{n}"}]) for n in range(8)
        ]
        answers = await asyncio.gather(*calls)
    assert len({answer.id for answer in answers}) == 8
    assert len((await harness.trajectory(opened)).interactions) == 8


async def test_the_models_and_the_health_of_the_gateway_can_be_asked(harness):
    opened = await harness.open()
    async with client(opened) as agent:
        assert [model.id async for model in agent.models.list()] == ["default"]
    async with aiohttp.ClientSession() as http, http.get(f"{root(opened)}/health") as response:
        assert (response.status, await response.json()) == (200, {"status": "ok"})


# ---------------------------------------------------------------- keys and sessions


@pytest.mark.parametrize("prefix", ["", "/v1", "/{session}", "/{session}/v1"])
@pytest.mark.parametrize("header", ["Authorization", "x-api-key"])
async def test_a_key_opens_its_session_by_either_header_at_every_address(harness, prefix, header):
    opened = await harness.open()
    key = f"Bearer {opened.api_key}" if header == "Authorization" else opened.api_key
    url = root(opened) + prefix.format(session=opened.session) + "/chat/completions"
    async with (
        aiohttp.ClientSession() as http,
        http.post(url, json={"messages": HELLO}, headers={header: key}) as response,
    ):
        assert response.status == 200
    assert harness.recorded()[0].session == opened.session


async def test_a_wrong_key_is_a_401_in_openai_s_shape(harness):
    opened = await harness.open()
    async with client(opened, api_key="sk-wrong") as agent:
        with pytest.raises(openai.AuthenticationError, match="no session has this API key") as caught:
            await agent.chat.completions.create(model="m", messages=HELLO)
    assert caught.value.body["type"] == "authentication_error"
    assert not harness.parrot.prompts


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Basic abc"}, {"Authorization": "Bearer "}, {"x-api-key": ""}]
)
async def test_no_key_is_a_401_with_a_hint_how_to_send_one(harness, headers):
    status, body = await post(await harness.open(), {"messages": HELLO}, headers=headers)
    assert status == 401
    assert "send the session's key as 'Authorization: Bearer <key>'" in body["error"]["message"]


async def test_a_key_of_bytes_that_are_no_text_is_a_401(harness):
    opened = await harness.open()
    host, _, port = root(opened).removeprefix("http://").partition(":")
    for header in (b"Authorization: Bearer \xff\xfe", b"x-api-key: \xc3\x28"):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            + header
            + b"\r\nContent-Length: 2\r\n\r\n{}"
        )
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert answer.startswith(b"HTTP/1.1 401 ")


async def test_the_key_of_another_session_is_a_401_by_path(harness):
    mine, other = await harness.open(work("0.0")), await harness.open(work("0.1"))
    async with client(mine, api_key=other.api_key) as agent:
        with pytest.raises(openai.AuthenticationError, match="does not open the session in the path"):
            await agent.chat.completions.create(model="m", messages=HELLO)
    assert not harness.recorded()


@pytest.mark.parametrize("name", ["nothing", "%ff%fe", "..%2f", "x" * 5000])
async def test_a_session_that_never_was_is_a_401_by_path(harness, name):
    opened = await harness.open()
    url = f"{root(opened)}/{name}/v1/chat/completions"
    async with (
        aiohttp.ClientSession() as http,
        http.post(
            aiohttp.client.URL(url, encoded=True), json={"messages": HELLO}, headers={"x-api-key": opened.api_key}
        ) as response,
    ):
        assert response.status in {401, 404}
        assert not harness.recorded()


async def test_a_session_that_is_over_is_a_410_for_calls_and_rewards(harness):
    opened = await harness.open()
    async with client(opened) as agent:
        await agent.chat.completions.create(model="m", messages=HELLO)
        await harness.trajectory(opened)
        with pytest.raises(openai.APIStatusError, match="is over") as caught:
            await agent.chat.completions.create(model="m", messages=HELLO)
        assert caught.value.status_code == 410
    status, body = await post(opened, {"reward": 1.0}, path="/../rl/set_reward")
    assert (status, body["error"]["type"]) == (410, "session_over")
