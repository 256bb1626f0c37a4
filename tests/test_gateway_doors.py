"""Protection of clients from each other at the gateway: huge prompts, endless headers, and access control."""

from __future__ import annotations

import asyncio
import io
import json

import aiohttp
import anthropic
import openai
import pytest
import uvloop
from support.fake_engine import FixedTextEngine
from support.gateway_harness import HELLO, client, opened_gateway, post, root
from support.samples import letters

from areal_actors.core.errors import PromptTooLong
from areal_actors.gateway.conversations.conversation import PromptLimit, encode_within
from areal_actors.gateway.sessions.keys import admin_key
from areal_actors.gateway.settings import GatewaySettings

MEGABYTE = 2**20
HUGE = [{"role": "user", "content": "all work and no play " * (15 * MEGABYTE // 21)}]


def big(body):
    """A body that aiohttp sends without a warning."""
    return io.BytesIO(json.dumps(body).encode())


@pytest.fixture
async def harness():
    async with opened_gateway() as harness:
        await harness.engine("inference_worker-0", FixedTextEngine())
        harness.opened = await harness.open(lease=600)
        yield harness


# ---------------------------------------------------------------- prompts that cannot fit


class Counting:
    """A tokenizer that notes how much it was given."""

    def __init__(self, chat):
        self.chat, self.characters = chat, 0
        self.encode_all, chat._encode = chat._encode, self.encode

    def encode(self, text, *, once):
        self.characters += len(text)
        return self.encode_all(text, once=once)


async def test_a_prompt_of_15_mb_is_refused_before_it_is_tokenised(harness):
    counting = Counting(harness.manager.calls.served.chat)
    status, reply = await post(harness.opened, big({"messages": HUGE}), raw=True)
    assert status == 400
    assert reply["error"]["code"] == "context_length_exceeded"
    assert "counted from its length" in reply["error"]["message"]
    assert counting.characters < 0.01 * len(HUGE[0]["content"])


def test_a_text_that_may_fit_is_not_refused_and_one_that_cannot_is_whatever_it_is_made_of():
    chat = letters()
    texts = [
        "word " * 9000,
        "x" * 50_000,
        " " * 50_000,
        "\n" * 50_000,
        "字" * 30_000,
        "e\u0301" * 30_000,
        "a b\n\n  c" * 6000,
    ]
    for text in texts:
        tokens = len(chat.encode(text))
        for most in (1, tokens // 2, tokens - 1, tokens, 2 * tokens):
            least = chat.min_token_count(text, most)
            assert least == 0 or most < least <= tokens, (text[:8], most)
        assert chat.min_token_count(text, 64) > 64, text[:8]
        assert chat.min_token_count(text, tokens) == 0


def test_what_an_earlier_call_has_used_is_taken_off_the_room():
    chat = letters()
    text = "word " * 9000
    room = PromptLimit(max_model_len=len(chat.encode(text)) + 10, field="messages")
    assert encode_within(chat, text, room)
    with pytest.raises(PromptTooLong, match="maximum context length") as refused:
        encode_within(chat, text, room, after=room.max_model_len - 100)
    assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize("content", [HELLO[0]["content"] * 300, HUGE[0]["content"]], ids=["long", "huge"])
async def test_openai_clients_recognise_a_context_that_overflows(harness, content):
    async with client(harness.opened) as made:
        for call in (
            lambda: made.chat.completions.create(model="m", messages=[{"role": "user", "content": content}]),
            lambda: made.responses.create(model="m", input=content),
            lambda: made.completions.create(model="m", prompt=content),
        ):
            with pytest.raises(openai.BadRequestError, match="maximum context length is 300 tokens") as refused:
                await call()
            assert (refused.value.code, refused.value.type) == ("context_length_exceeded", "invalid_request_error")


@pytest.mark.parametrize("content", [HELLO[0]["content"] * 300, HUGE[0]["content"]], ids=["long", "huge"])
async def test_anthropic_clients_recognise_a_context_that_overflows(harness, content):
    opened = harness.opened
    async with anthropic.AsyncAnthropic(
        base_url=opened.base_url.removesuffix("/v1"), api_key=opened.api_key, max_retries=0
    ) as made:
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 300 maximum") as refused:
            await made.messages.create(model="m", max_tokens=8, messages=[{"role": "user", "content": content}])
    assert refused.value.body["error"]["type"] == "invalid_request_error"


# ---------------------------------------------------------------- others' calls meanwhile


async def test_the_loop_continues_while_a_long_prompt_is_tokenised(harness):
    """The tokenizer is held up in the middle: only a thread of its own lets others go on."""
    chat, loop = harness.manager.calls.served.chat, asyncio.get_running_loop()
    reached, go_on = asyncio.Event(), asyncio.Event()
    encode = chat._encode

    def held(text, *, once):
        if len(text) > 100_000:
            loop.call_soon_threadsafe(reached.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(60)
        return encode(text, once=once)

    chat._encode = held
    harness.manager.calls.served.max_model_len = 10 * MEGABYTE
    long = asyncio.create_task(
        post(
            harness.opened, big({"messages": [{"role": "user", "content": "a " * 100_000}], "max_tokens": 20}), raw=True
        )
    )
    async with asyncio.timeout(300):
        await reached.wait()
        for _ in range(3):
            status, reply = await post(harness.opened, {"messages": HELLO, "max_tokens": 20})
            assert (status, reply["choices"][0]["message"]["content"]) == (200, "hi there")
        assert not long.done()
        go_on.set()
        status, reply = await long
    assert status == 200
    assert reply["usage"]["prompt_tokens"] > 100_000


async def test_a_body_beyond_the_setting_is_refused():
    async with opened_gateway(GatewaySettings(max_body_mb=1)) as harness:
        opened = await harness.open()
        status, reply = await post(opened, io.BytesIO(b" " * (MEGABYTE + 1)), raw=True)
        assert status == 413
        assert "larger than 1 MiB" in reply["error"]["message"]


# ---------------------------------------------------------------- heads that do not come


async def line(harness):
    host, _, port = root(harness.opened).removeprefix("http://").partition(":")
    return await asyncio.open_connection(host, int(port))


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHost: x\r\nA"], ids=["nothing", "trickle"])
async def test_a_head_that_does_not_come_in_time_is_the_end_of_its_connection(sent):
    async with opened_gateway(GatewaySettings(head_seconds=0.3)) as harness:
        harness.opened = await harness.open()
        reader, writer = await line(harness)
        writer.write(sent)

        async def trickle():
            while sent:
                await asyncio.sleep(0.05)
                writer.write(b"a")

        trickling = asyncio.create_task(trickle())
        async with asyncio.timeout(300):
            assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        trickling.cancel()
        await asyncio.gather(trickling, return_exceptions=True)
        writer.close()


async def test_a_connection_that_is_kept_is_not_closed_for_being_idle_or_slow_to_answer():
    async with opened_gateway(GatewaySettings(head_seconds=0.3)) as harness:
        parrot = await harness.engine("inference_worker-0", FixedTextEngine(hold_at=2))
        opened = harness.opened = await harness.open()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as http:
            ask = {"messages": HELLO, "max_tokens": 20}
            headers = {"Authorization": f"Bearer {opened.api_key}"}
            async with asyncio.timeout(300):
                for _ in range(2):
                    call = asyncio.create_task(
                        http.post(opened.base_url + "/chat/completions", json=ask, headers=headers).__aenter__()
                    )
                    await parrot.held.wait()
                    await asyncio.sleep(0.6)  # longer than a head may take
                    parrot.go_on.set()
                    response = await call
                    assert response.status == 200
                    await response.read()
                    await asyncio.sleep(0.6)


async def test_a_slow_head_on_a_kept_connection_ends_it():
    async with opened_gateway(GatewaySettings(head_seconds=0.3)) as harness:
        harness.opened = await harness.open()
        reader, writer = await line(harness)
        async with asyncio.timeout(300):
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            await asyncio.sleep(0.6)
            writer.write(b"GET /health HT")
            assert b"HTTP/1.1 408 " in await reader.read()
        writer.close()


def test_the_gateway_serves_and_closes_on_the_loop_that_runs_have():
    async def call():
        async with opened_gateway(GatewaySettings(head_seconds=0.3)) as harness:
            await harness.engine("inference_worker-0", FixedTextEngine())
            harness.opened = await harness.open()
            assert (await post(harness.opened, {"messages": HELLO, "max_tokens": 20}))[0] == 200
            reader, writer = await line(harness)
            assert (await asyncio.wait_for(reader.read(), 300)).startswith(b"HTTP/1.1 408 ")
            writer.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(call())


# ---------------------------------------------------------------- who finds it, and who reads what


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"host": "0.0.0.0"}, "http://127.0.0.1:80"),
        ({"host": "::"}, "http://[::1]:80"),
        ({"host": ""}, "http://127.0.0.1:80"),
        ({"host": "127.0.0.1"}, "http://127.0.0.1:80"),
        ({"host": "::1"}, "http://[::1]:80"),
        ({"host": "10.1.2.3"}, "http://10.1.2.3:80"),
        ({"host": "0.0.0.0", "advertise": "node7"}, "http://node7:80"),
        ({"advertise": "https://models.example.org/"}, "https://models.example.org"),
    ],
)
def test_agents_are_given_an_address_that_they_can_reach(settings, url):
    assert GatewaySettings(**settings).url(80) == url


async def test_an_agent_reaches_a_gateway_that_listens_on_every_interface():
    async with opened_gateway(GatewaySettings(host="0.0.0.0")) as harness:
        await harness.engine("inference_worker-0", FixedTextEngine())
        opened = await harness.open()
        assert opened.base_url.startswith("http://127.0.0.1:")
        status, _ = await post(opened, {"messages": HELLO, "max_tokens": 20})
        assert status == 200


async def test_metrics_want_the_admin_key_where_others_can_ask():
    key = admin_key(b"secret", "")
    for host, statuses in (("127.0.0.1", [200, 200, 200]), ("0.0.0.0", [401, 403, 200])):
        async with opened_gateway(GatewaySettings(host=host)) as harness:
            harness.opened = await harness.open()
            async with aiohttp.ClientSession() as http:
                keys = [{}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {key}"}]
                answers = [await http.get(root(harness.opened) + "/metrics", headers=headers) for headers in keys]
                assert [answer.status for answer in answers] == statuses
                assert "areal_sessions" in await answers[-1].text()
                foreign = await http.get(root(harness.opened) + "/metrics", headers={"Host": "evil.example"})
                assert foreign.status == (403 if host == "127.0.0.1" else 401)
