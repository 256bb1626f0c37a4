"""Habits of genuine clients, and what the gateway does with them."""

from __future__ import annotations

import asyncio
import re

import aiohttp
import anthropic
import openai
import pytest
from support.fake_engine import FixedTextEngine
from support.gateway_harness import HELLO, client, opened_gateway, post, root

from areal_actors.gateway.event_stream import HEAD_SECONDS
from areal_actors.gateway.settings import GatewaySettings

EXTRA = {"next_year": {"a": 1}, "ignore_eos": False}


@pytest.fixture
async def harness():
    async with opened_gateway() as harness:
        await harness.engine("inference_worker-0", FixedTextEngine())
        harness.opened = await harness.open(lease=3600)
        yield harness


async def test_clients_with_unknown_fields_are_answered_and_the_log_lists_them(harness):
    async with client(harness.opened) as clients:
        answered = await clients.chat.completions.with_raw_response.create(model="m", messages=HELLO, extra_body=EXTRA)
        assert answered.headers["x-areal-ignored"] == "next_year, ignore_eos"
        reply = answered.parse().choices[0].message.model_dump() | {"reasoning_details": [], "timestamp": 1}
        await clients.chat.completions.create(model="m", messages=[*HELLO, reply, *HELLO])
    assert [call.ignored for call in harness.recorded()] == [
        ("next_year", "ignore_eos"),
        ("messages[].reasoning_details", "messages[].timestamp"),
    ]


async def test_unknown_fields_are_refused_where_the_recipe_has_it_so():
    async with (
        opened_gateway(GatewaySettings(unknown_fields="refuse")) as harness,
        client(await harness.open()) as clients,
    ):
        with pytest.raises(openai.BadRequestError, match="'next_year' is not a known field"):
            await clients.chat.completions.create(model="m", messages=HELLO, extra_body=EXTRA)


async def test_the_newest_anthropic_client_is_answered_with_all_its_metadata(harness):
    async with anthropic.AsyncAnthropic(
        base_url=root(harness.opened), api_key=harness.opened.api_key, max_retries=0
    ) as clients:
        answered = await clients.beta.messages.with_raw_response.create(
            model="m",
            max_tokens=5,
            messages=HELLO,
            user_profile_id="u",
            container="c",
            betas=["x"],
            extra_body={"workspace_id": "w", "diagnostics": {}},
        )
        assert (await answered.parse()).type == "message"
    assert set(answered.headers["x-areal-ignored"].split(", ")) >= {
        "workspace_id",
        "container",
        "diagnostics",
        "anthropic-beta",
    }


STREAMED = {
    "/chat/completions": {"messages": HELLO},
    "/completions": {"prompt": "u:hello\na:"},
    "/responses": {"input": "hello"},
    "/messages": {"messages": HELLO, "max_tokens": 20},
}


@pytest.fixture
async def slow():
    """A gateway whose engine samples no token until `go_on`."""
    async with opened_gateway(GatewaySettings(keep_alive_seconds=0.05)) as harness:
        harness.slow_engine = await harness.engine("inference_worker-0", FixedTextEngine(hold_at=0))
        harness.opened = await harness.open(lease=3600)
        yield harness


@pytest.mark.parametrize("path", STREAMED)
async def test_a_stream_has_its_head_and_signs_of_life_before_the_first_token(slow, path):
    headers = {"Authorization": f"Bearer {slow.opened.api_key}"}
    sign = b"event: ping" if path == "/messages" else b": keep-alive"
    async with (
        aiohttp.ClientSession() as http,
        http.post(slow.opened.base_url + path, json=STREAMED[path] | {"stream": True}, headers=headers) as response,
    ):
        assert (response.status, response.content_type) == (200, "text/event-stream")
        signs = 0
        while signs < 3:
            signs += sign in await response.content.readuntil(b"\n\n")
        slow.slow_engine.go_on.set()
        rest = await response.content.read()
    assert b"hi there" in b"".join(re.findall(rb'"(?:text|content|delta)":"([^"]*)"', rest))


async def test_genuine_clients_read_a_stream_that_begins_with_signs_of_life(slow):
    async def release():
        await slow.slow_engine.held.wait()
        await asyncio.sleep(HEAD_SECONDS + 0.2)
        slow.slow_engine.go_on.set()

    key = slow.opened.api_key
    async with (
        client(slow.opened) as clients,
        anthropic.AsyncAnthropic(base_url=slow.opened.base_url, api_key=key) as others,
    ):
        released = asyncio.create_task(release())
        async with others.messages.stream(model="m", messages=HELLO, max_tokens=20) as stream:
            assert (await stream.get_final_message()).content[0].text == "hi there"
        await released
        for hold in ("chat", "responses"):
            slow.slow_engine.held.clear()
            slow.slow_engine.go_on.clear()
            released = asyncio.create_task(release())
            if hold == "chat":
                chunks = [
                    chunk
                    async for chunk in await clients.chat.completions.create(model="m", messages=HELLO, stream=True)
                ]
                assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hi there"
            else:
                async with clients.responses.stream(model="m", input="hello") as stream:
                    assert (await stream.get_final_response()).output_text == "hi there"
            await released


async def test_an_error_before_the_head_has_a_status_of_its_own(slow):
    long = [{"role": "user", "content": "x" * 1000}]
    for path in ("/chat/completions", "/messages"):
        status, body = await post(slow.opened, {"messages": long, "max_tokens": 5, "stream": True}, path)
        assert status == 400
        assert "maximum" in body["error"]["message"]


@pytest.mark.parametrize("base", ["{root}", "{root}/v1", "{root}/{session}", "{root}/{session}/v1"])
async def test_the_anthropic_client_is_answered_with_and_without_the_version_in_its_address(harness, base):
    base_url = base.format(root=root(harness.opened), session=harness.opened.session)
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key=harness.opened.api_key, max_retries=0) as clients:
        answer = await clients.messages.create(model="m", max_tokens=20, messages=HELLO)
        counted = await clients.messages.count_tokens(model="m", messages=HELLO)
    assert (answer.content[0].text, counted.input_tokens) == ("hi there", answer.usage.input_tokens)


@pytest.mark.parametrize("verb", ["generateContent", "streamGenerateContent"])
async def test_googles_protocol_is_named_as_not_served(harness, verb):
    status, body = await post(harness.opened, {"contents": []}, f"beta/models/gemini:{verb}")
    assert status == 404
    assert "Google's protocol (generateContent) is not served" in body["error"]["message"]


async def test_a_call_whose_request_had_a_field_without_effect_is_marked_unless_the_field_is_bookkeeping(harness):
    async with client(harness.opened) as clients:
        for more in (
            {"metadata": {"a": "b"}, "user": "me"},
            {"verbosity": "low", "user": "me"},
            {"extra_body": {"next_years_field": 1}},
        ):
            await clients.chat.completions.create(model="m", messages=HELLO, **more)
    made = await harness.trajectory(harness.opened)
    assert [call.fields_ignored for call in made.interactions] == [False, True, True]


async def test_a_client_that_always_sends_one_seed_has_it_listed_as_ignored_in_training(harness):
    async with client(harness.opened) as clients:
        answered = await clients.chat.completions.with_raw_response.create(model="m", messages=HELLO, seed=42)
        assert answered.headers["x-areal-ignored"] == "seed"
    assert harness.recorded()[-1].ignored == ("seed",)
