"""Limits of the gateway: requests that are too large, too slow or incomplete; and its shutdown."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest
from support.fake_engine import FixedTextEngine
from support.gateway_harness import HELLO, nothing_in_flight, opened_gateway, post, root

from areal_actors.gateway import server as gateway_module
from areal_actors.gateway.settings import GatewaySettings

ASK = {"messages": HELLO, "max_tokens": 20}
PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"]


@pytest.fixture
async def harness():
    async with opened_gateway() as harness:
        harness.parrot = await harness.engine("inference_worker-0", FixedTextEngine())
        harness.opened = await harness.open(lease=3600)
        yield harness


@asynccontextmanager
async def line(harness):
    """A bare connection."""
    host, _, port = root(harness.opened).removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**26)
    try:
        yield reader, writer
    finally:
        writer.close()


def request(harness, path="/v1/chat/completions", body=None, *headers, method="POST", key=None):
    """The bytes of a request; `headers` may replace its length."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: localhost",
        f"x-api-key: {harness.opened.api_key if key is None else key}",
        *headers,
    ]
    if not any(header.lower().startswith(("content-length", "transfer-encoding")) for header in headers):
        lines.append(f"Content-Length: {len(data)}")
    return "\r\n".join([*lines, "", ""]).encode() + data


async def answer(reader):
    """Status, headers and body of the next answer on a line."""
    async with asyncio.timeout(300):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *rest = head.strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (one.partition(": ") for one in rest)}
        length = headers.get("content-length")
        body = await (reader.readexactly(int(length)) if length else reader.read())
        status = int(first.split()[1])
    return status, headers, json.loads(body) if headers.get("content-type", "").startswith("application/json") else body


def in_shape(path, reply):
    """True if an error has the shape of the protocol that was called."""
    if "/messages" in path:
        return reply["type"] == "error" and {"type", "message"} <= reply["error"].keys()
    return reply["error"].keys() == {"message", "type", "param", "code"}


async def still_serves(harness):
    async with asyncio.timeout(300):
        status, reply = await post(harness.opened, ASK)
    assert status == 200
    assert reply["choices"][0]["message"]["content"] == "hi there"
    await nothing_in_flight(harness)


# ---------------------------------------------------------------- too much


@pytest.mark.parametrize("chunked", [False, True], ids=["sized", "chunked"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/rl/set_reward"])
async def test_a_body_beyond_the_limit_is_a_413_in_the_protocol_s_shape(harness, path, chunked):
    async def pieces():
        for _ in range(17):
            yield b" " * 2**20

    data = pieces() if chunked else io.BytesIO(b" " * (17 * 2**20))
    headers = {"x-api-key": harness.opened.api_key}
    async with (
        aiohttp.ClientSession() as http,
        http.post(root(harness.opened) + path, data=data, headers=headers) as response,
    ):
        assert response.status == 413
        reply = await response.json()
    assert in_shape(path, reply)
    assert "larger than 16 MiB (`gateway.max_body_mb`); send less" in reply["error"]["message"]
    await still_serves(harness)


async def test_a_body_at_the_limit_is_read(harness):
    body = json.dumps(ASK).encode()
    status, _ = await post(
        harness.opened, io.BytesIO(b" " * (GatewaySettings().max_body_mb * 2**20 - len(body)) + body), raw=True
    )
    assert status == 200


async def test_the_body_of_a_stranger_is_not_waited_for(harness):
    async with line(harness) as (reader, writer):
        writer.write(request(harness, "/v1/messages", None, "Content-Length: 10000000", key="sk-wrong"))
        status, _, reply = await answer(reader)
    assert status == 401
    assert in_shape("/v1/messages", reply)


@pytest.mark.parametrize(
    "head",
    [
        "GET /" + "a" * 20_000 + " HTTP/1.1\r\nHost: x",
        "GET /health HTTP/1.1\r\nHost: x\r\nA: " + "a" * 20_000,
        "GET /health HTTP/1.1\r\nHost: x\r\n" + "\r\n".join(f"a{number}: b" for number in range(2000)),
        "GET /health HTTP/1.1\r\nHost: x\r\nHost: y",
        "GET /health HTTP/9.9\r\nHost: x",
        "BREW /health HTTP/1.1\r\nHost: x",
        "GET /\xff HTTP/1.1\r\nHost: x",
        "GET http://[::1 HTTP/1.1\r\nHost: x",
        "GET /health HTTP/1.1\r\nHost: x\r\nA: b\x00c",
        "POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: -5",
        "POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: " + "9" * 30,
        "POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3",
        "POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked",
        "POST /v1/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, chunked",
        "\x16\x03\x01\x02",
        "PRI * HTTP/2.0\r\n\r\nSM",
        " ",
    ],
    ids=lambda head: head[:12].strip() + str(len(head)),
)
async def test_what_is_no_http_is_a_400_and_the_end_of_its_connection(harness, head):
    async with line(harness) as (reader, writer):
        writer.write(head.encode("latin-1") + b"\r\n\r\n")
        async with asyncio.timeout(300):
            reply = await reader.read()
    assert reply.startswith(b"HTTP/1.0 4")
    await still_serves(harness)


@pytest.mark.parametrize(
    "chunks",
    [b"zz\r\nabc", b"2\r\n{}xx\r\n0\r\n\r\n", b"-2\r\n{}\r\n", b"fffffffffffffffffff\r\n{}", b"2\n{}\n0\n\n", b"\r\n"],
    ids=lambda chunks: chunks[:4].hex(),
)
async def test_a_malformed_chunked_body_is_a_4xx_and_the_end_of_its_connection(harness, chunks):
    async with line(harness) as (reader, writer):
        writer.write(request(harness, "/v1/chat/completions", None, "Transfer-Encoding: chunked") + chunks)
        async with asyncio.timeout(300):
            reply = await reader.read()
    assert reply[:10] in {b"HTTP/1.0 4", b"HTTP/1.1 4"}
    await still_serves(harness)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_body_broken_off_by_something_that_is_no_chunk_ends_with_its_connection(harness, path, monkeypatch):
    monkeypatch.setattr(gateway_module, "BODY_SECONDS", 0.1)
    async with line(harness) as (reader, writer):
        writer.write(request(harness, path, None, "Transfer-Encoding: chunked") + b"1\r\n{\r\n")
        await asyncio.sleep(0.05)
        writer.write(b"zz\r\n")
        status, headers, reply = await answer(reader)
        assert (status, headers["connection"]) == (408, "close")
        assert in_shape(path, reply)
    await still_serves(harness)


# ---------------------------------------------------------------- too slow, and half of it


async def test_clients_that_never_finish_their_request_delay_no_other(harness):
    beginnings = [b"", b"POST /v1/chat", request(harness)[:60], request(harness, "/v1/messages", ASK)[:-10]]
    host, _, port = root(harness.opened).removeprefix("http://").partition(":")
    writers = []
    for number in range(300):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(beginnings[number % len(beginnings)])
        writers.append(writer)
    await asyncio.sleep(0.05)
    await still_serves(harness)
    for writer in writers:
        writer.close()
    await nothing_in_flight(harness)


async def test_a_body_that_does_not_come_is_a_408(harness, monkeypatch):
    monkeypatch.setattr(gateway_module, "BODY_SECONDS", 0.05)
    async with line(harness) as (reader, writer):
        writer.write(request(harness, "/v1/messages", ASK)[:-10])
        status, headers, reply = await answer(reader)
    assert status == 408
    assert headers["connection"] == "close"
    assert in_shape("/v1/messages", reply)
    await still_serves(harness)


async def test_a_client_that_disconnects_during_its_upload_makes_no_model_call(harness):
    async with line(harness) as (_, writer):
        writer.write(request(harness, "/v1/chat/completions", ASK)[:-10])
        await writer.drain()
    await still_serves(harness)
    assert harness.manager.registry.get(harness.opened.session).calls == 1
    assert len(harness.parrot.prompts) == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_client_that_disconnects_during_generation_leaves_nothing_in_flight(harness, stream, path):
    harness.parrot.hold_at = 3
    async with line(harness) as (reader, writer):
        writer.write(request(harness, path, {**ASK, "stream": stream}))
        await harness.parrot.held.wait()
        if stream:
            assert await reader.readuntil(b"\r\n\r\n")
        assert harness.manager.registry.get(harness.opened.session).running == 1
        assert harness.manager.calls.pool.in_flight == {"inference_worker-0": 1}
    await nothing_in_flight(harness)
    async with asyncio.timeout(300):
        while harness.parrot.running:  # noqa: ASYNC110 - the engine's slot is free, too
            await asyncio.sleep(0.005)
    turns = harness.manager.registry.get(harness.opened.session).interactions()
    assert [(len(turn.completion), turn.finish_reason) for turn in turns] == ([(3, "cancelled")] if stream else [])
    harness.parrot.hold_at = -1
    await still_serves(harness)
    assert [one.finish_reason for one in harness.recorded() if one.finish_reason != "cancelled"] == ["stop"]


# ---------------------------------------------------------------- wrong doors


@pytest.mark.parametrize("path", [*PATHS, "/v1/nothing", "/v1/messages/batches", "/v1/messages/"])
@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "GET"])
async def test_a_wrong_method_or_path_is_refused_in_the_protocol_s_shape(harness, path, method):
    async with line(harness) as (reader, writer):
        writer.write(request(harness, path, None, method=method))
        status, headers, reply = await answer(reader)
    assert status == (405 if path in PATHS else 404)
    assert in_shape(path, reply)
    assert status == 404 or headers["allow"] == "POST"
    assert status == 405 or "GET /openapi.json" in reply["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/ready", "/metrics", "/openapi.json"])
async def test_head_returns_the_length_without_a_body(harness, path):
    async with line(harness) as (reader, writer):
        writer.write(
            request(harness, path, None, method="HEAD")
            + request(harness, path, None, "Connection: close", method="GET")
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        status, headers, _ = await answer(reader)
    assert status == 200
    assert path == "/metrics" or f"Content-Length: {headers['content-length']}" in head.decode()


async def test_a_connection_continues_after_an_error(harness):
    wrong = [
        (request(harness, body=b"{"), 400),
        (request(harness, body=ASK, key="sk-wrong"), 401),
        (request(harness, "/v1/nothing", ASK), 404),
        (request(harness, "/v1/messages", ASK, method="PUT"), 405),
        (request(harness, "/rl/session?session_id=x", method="GET", key="sk-no"), 401),
        (request(harness, "/v1/chat/completions", ASK, "Content-Type: text/html"), 400),
    ]
    async with line(harness) as (reader, writer):
        for sent, expected in wrong:
            writer.write(sent)
            status, _, _ = await answer(reader)
            assert status == expected
            writer.write(request(harness, body=ASK))
            assert (await answer(reader))[0] == 200


async def test_requests_in_one_packet_are_answered_in_order(harness):
    sent = [
        request(harness, body=ASK),
        request(harness, body=b"{"),
        request(harness, "/v1/models", method="GET"),
        request(harness, body=ASK),
    ]
    async with line(harness) as (reader, writer):
        writer.write(b"".join(sent))
        assert [(await answer(reader))[0] for _ in sent] == [200, 400, 200, 200]


# ---------------------------------------------------------------- its end


async def test_calls_in_flight_end_whole_while_new_connections_are_refused(harness):
    harness.parrot.hold_at = 3
    whole = asyncio.create_task(post(harness.opened, ASK))
    await harness.parrot.held.wait()
    async with line(harness) as (reader, writer), line(harness) as (idle, _):
        writer.write(request(harness, body={**ASK, "stream": True}))
        await reader.readuntil(b"\r\n\r\n")
        stopping = asyncio.create_task(harness.manager.gateway.stop())
        assert await idle.read() == b"", "a connection that waits for nothing is closed at once"
        with pytest.raises(aiohttp.ClientConnectorError):
            await post(harness.opened, ASK)
        assert not stopping.done()
        harness.parrot.go_on.set()
        status, reply = await whole
        streamed = (await reader.read()).decode()
    assert (status, reply["choices"][0]["message"]["content"]) == (200, "hi there")
    assert streamed.rstrip().endswith("data: [DONE]\n\n\r\n0".rstrip())
    pieces = [json.loads(text.partition("\n")[0]) for text in streamed.split("data: ")[1:] if text.startswith("{")]
    assert "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces) == "hi there"
    await asyncio.wait_for(stopping, 300)
    assert len(harness.recorded()) == 2


async def test_a_call_that_does_not_end_is_broken_off_in_time(harness, monkeypatch):
    monkeypatch.setattr(gateway_module, "SHUTDOWN_SECONDS", 0.1)
    async with opened_gateway() as brief:
        parrot = await brief.engine("inference_worker-0", FixedTextEngine(hold_at=3))
        opened = await brief.open(lease=3600)
        asking = asyncio.create_task(post(opened, ASK))
        await parrot.held.wait()
        await asyncio.wait_for(brief.manager.gateway.stop(), 300)
        with pytest.raises(aiohttp.ClientError):
            await asking
        await nothing_in_flight(brief)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_when_the_run_stops_a_call_in_flight_fails_at_once(harness, path, stream):
    harness.parrot.hold_at = 3
    async with line(harness) as (reader, writer):
        writer.write(request(harness, path, {**ASK, "stream": stream}))
        await harness.parrot.held.wait()
        if stream:
            await reader.readuntil(b"\r\n\r\n")
        harness.tasks["session_manager-0"].cancel()
        if stream:
            async with asyncio.timeout(300):
                text = (await reader.read()).decode()
            events = [json.loads(part.partition("\n")[0]) for part in text.split("data: ")[1:] if part.startswith("{")]
            reply = next(event for event in events if "error" in event)
        else:
            status, _, reply = await asyncio.wait_for(answer(reader), 300)
            assert status == 503
    assert in_shape(path, reply)
    assert "the gateway is stopping" in reply["error"]["message"]
    await asyncio.wait({harness.tasks["session_manager-0"]}, timeout=300)
    assert harness.tasks["session_manager-0"].done()
