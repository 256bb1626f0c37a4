"""Requests that are read in their plain form are answered as aiohttp answers them; every other form is aiohttp's."""

from __future__ import annotations

import asyncio
import json

import anthropic
import openai
import pytest
from support.gateway_harness import nothing_in_flight
from test_gateway_limits import ASK, answer, harness, line, request

from areal_actors.client import LightClient
from areal_actors.core import plain_connections
from areal_actors.core.plain_requests import MOST_BYTES, Incomplete, PlainRequest, head_of_answer, read_plain
from areal_actors.gateway.plain_calls import PlainCalls

__all__ = ["harness"]

HEAD = b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
CHUNKED = "Transfer-Encoding: chunked"


def test_a_plain_request_is_read_with_its_headers_and_its_size():
    read = read_plain(HEAD + b"X-Api-Key:  a b \r\n\r\n{}POST")
    assert read == PlainRequest(
        "/v1/messages", {"host": "x", "content-length": "2", "x-api-key": "a b"}, b"{}", len(HEAD) + 20 + 2
    )
    assert isinstance(read_plain(HEAD + b"\r\n{"), Incomplete)


@pytest.mark.parametrize(
    "data",
    [
        HEAD,
        HEAD.replace(b"POST", b"GET") + b"\r\n{}",
        HEAD.replace(b"1.1", b"1.0") + b"\r\n{}",
        HEAD.replace(b"Host", b"Ghost") + b"\r\n{}",
        HEAD.replace(b" 2", b" +2") + b"\r\n{}",
        HEAD.replace(b" 2", b" 2, 2") + b"\r\n{}",
        HEAD.replace(b" 2", b" %d" % MOST_BYTES) + b"\r\n{}",
        HEAD.replace(b"/v1", b"/a%20") + b"\r\n{}",
        HEAD.replace(b"/v1", b"/../v1") + b"\r\n{}",
        HEAD.replace(b"/v1", b"//v1") + b"\r\n{}",
        HEAD.replace(b"messages", b"messages?a=1") + b"\r\n{}",
        HEAD.replace(b"/v1", b"http://x/v1") + b"\r\n{}",
        HEAD + b"Content-Length: 2\r\n\r\n{}",
        HEAD + b"content-length: 3\r\n\r\n{}",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n{}",
        HEAD + b"Transfer-Encoding : chunked\r\n\r\n{}",
        HEAD + b"Content-Encoding: gzip\r\n\r\n{}",
        HEAD + b"Connection: close\r\n\r\n{}",
        HEAD + b"Expect: 100-continue\r\n\r\n{}",
        HEAD + b"Upgrade: h2c\r\n\r\n{}",
        HEAD + b"A: b\r\n folded\r\n\r\n{}",
        HEAD + b"A: b\nC: d\r\n\r\n{}",
        HEAD + b"A: b\rC: d\r\n\r\n{}",
        HEAD + b"A: \xc3\xa9\r\n\r\n{}",
        HEAD + b"A: b\x00\r\n\r\n{}",
        HEAD + b": b\r\n\r\n{}",
        HEAD + b"A\r\n\r\n{}",
    ],
    ids=range(27),
)
def test_another_form_is_not_plain(data):
    assert read_plain(data) is None


def test_no_header_of_an_answer_ends_its_line():
    assert head_of_answer(200, {"A": "b"}, 0.0) == (
        b"HTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nA: b\r\n\r\n"
    )
    with pytest.raises(ValueError, match="line break"):
        head_of_answer(200, {"A": "b\r\nC: d"}, 0.0)


def asked(harness, *headers, **fields):
    return request(harness, "/v1/chat/completions", ASK | fields, "Content-Type: application/json", *headers)


async def send(harness, *pieces, pause=0.0):
    """The answer to the request in these pieces."""
    async with line(harness) as (reader, writer):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
        return await answer(reader)


async def test_both_readers_lead_to_the_same_answer(harness, monkeypatch):
    wrong = asked(harness, temperature="hot")
    requests = [asked(harness), asked(harness, user="somebody"), wrong, request(harness, key="sk-no", body=ASK)]
    plain = [await send(harness, sent) for sent in requests]
    monkeypatch.setattr(plain_connections, "read_plain", lambda _: None)
    other = [await send(harness, sent) for sent in requests]
    own = {"x-request-id", "date", "server", "content-length"}
    for (status, headers, body), (other_status, other_headers, other_body) in zip(plain, other, strict=True):
        assert status == other_status
        assert {name: text for name, text in headers.items() if name not in own} == {
            name: text for name, text in other_headers.items() if name not in own
        }
        assert own - {"server"} <= headers.keys()
        assert body.keys() == other_body.keys()
        assert body.get("error") == other_body.get("error")
    assert [status for status, _, _ in plain] == [200, 200, 400, 401]


@pytest.mark.parametrize("pause", [0.01, 0.2], ids=["soon", "after the hold"])
async def test_a_body_may_come_after_its_head(harness, pause):
    head, _, body = asked(harness).partition(b"\r\n\r\n")
    status, _, reply = await send(harness, head + b"\r\n\r\n", body[:9], body[9:], pause=pause)
    assert (status, reply["choices"][0]["message"]["content"]) == (200, "hi there")


async def test_a_connection_may_go_on_with_requests_of_another_form(harness):
    async with line(harness) as (reader, writer):
        body = json.dumps(ASK).encode()
        chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        other = request(harness, "/v1/chat/completions", None, CHUNKED) + chunks
        writer.write(asked(harness) + asked(harness) + other + asked(harness))
        for _ in range(4):
            status, _, reply = await answer(reader)
            assert (status, reply["choices"][0]["message"]["content"]) == (200, "hi there")
    await nothing_in_flight(harness)


async def test_a_connection_without_requests_is_closed_after_a_while(harness, monkeypatch):
    monkeypatch.setattr(plain_connections, "IDLE_SECONDS", 0.2)
    async with line(harness) as (reader, writer), asyncio.timeout(60):
        writer.write(asked(harness))
        assert (await answer(reader))[0] == 200
        assert await reader.read() == b"", "closed by the server"


async def test_a_connection_that_is_aiohttp_s_is_not_closed_with_it(harness, monkeypatch):
    monkeypatch.setattr(plain_connections, "IDLE_SECONDS", 0.2)
    other = request(harness, "/v1/chat/completions", ASK, "X-A: 1", "X-A: 2")
    async with line(harness) as (reader, writer), asyncio.timeout(60):
        writer.write(asked(harness) + other)
        assert [(await answer(reader))[0] for _ in range(2)] == [200, 200]
        await asyncio.sleep(0.5)
        writer.write(other)
        assert (await answer(reader))[0] == 200


async def test_a_streamed_answer_is_chunked_and_its_connection_stays_open(harness):
    async with line(harness) as (reader, writer):
        writer.write(asked(harness, stream=True))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Transfer-Encoding: chunked" in head
        assert b"Content-Type: text/event-stream" in head
        events = b""
        while size := int(await reader.readline(), 16):
            events += await reader.readexactly(size)
            assert await reader.readline() == b"\r\n"
        assert await reader.readline() == b"\r\n"
        assert events.endswith(b"data: [DONE]\n\n")
        writer.write(asked(harness))
        assert (await answer(reader))[0] == 200


@pytest.mark.parametrize("kind", ["openai", "light", "anthropic"])
async def test_the_calls_of_usual_clients_are_plain(harness, monkeypatch, kind):
    answered = []
    answer_call = PlainCalls.answer

    async def count(self, plain, connection):
        answered.append(plain.path)
        await answer_call(self, plain, connection)

    monkeypatch.setattr(PlainCalls, "answer", count)
    address, key = harness.opened.base_url, harness.opened.api_key
    for _ in range(2):
        if kind == "anthropic":
            async with anthropic.AsyncAnthropic(base_url=address.removesuffix("/v1"), api_key=key) as client:
                await client.messages.create(model="default", max_tokens=20, messages=ASK["messages"])
        else:
            made = openai.AsyncOpenAI if kind == "openai" else LightClient
            async with made(base_url=address, api_key=key) as client:
                await client.chat.completions.create(model="default", **ASK)
    assert len(answered) == 2
