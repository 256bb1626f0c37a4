"""What the gateway bears: too much, too slow, half of it; and how it ends."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest
from gateway_house import HELLO, Counted, Parrot, nothing_in_hand, opened_house, post, root

from areal_actors.gateway import server as gateway_module
from areal_actors.settings import GatewaySettings

ASK = {"messages": HELLO, "max_tokens": 20}
PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"]


@pytest.fixture
async def house():
    async with opened_house() as house:
        house.parrot = await house.engine("inference_worker-0", Counted())
        house.opened = await house.open(lease=60)
        yield house


@asynccontextmanager
async def line(house):
    """A bare connection."""
    host, _, port = root(house.opened).removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**26)
    try:
        yield reader, writer
    finally:
        writer.close()


def request(house, path="/v1/chat/completions", body=None, *headers, method="POST", key=None):
    """The bytes of a request; `headers` may replace its length."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: gateway", f"x-api-key: {house.opened.api_key if key is None else key}", *headers]
    if not any(header.lower().startswith(("content-length", "transfer-encoding")) for header in headers):
        lines.append(f"Content-Length: {len(data)}")
    return "\r\n".join([*lines, "", ""]).encode() + data


async def answer(reader):
    """Status, headers and body of the next answer on a line."""
    async with asyncio.timeout(30):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *rest = head.strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (one.partition(": ") for one in rest)}
        length = headers.get("content-length")
        body = await (reader.readexactly(int(length)) if length else reader.read())
        status = int(first.split()[1])
    return status, headers, json.loads(body) if headers.get("content-type", "").startswith("application/json") else body


def in_shape(path, told):
    """Whether an error has the shape of the protocol that was called."""
    if "/messages" in path:
        return told["type"] == "error" and {"type", "message"} <= told["error"].keys()
    return told["error"].keys() == {"message", "type", "param", "code"}


async def still_serves(house):
    async with asyncio.timeout(30):
        status, told = await post(house.opened, ASK)
    assert status == 200
    assert told["choices"][0]["message"]["content"] == "hi there"
    await nothing_in_hand(house)


# ---------------------------------------------------------------- too much


@pytest.mark.parametrize("chunked", [False, True], ids=["sized", "chunked"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/rl/set_reward"])
async def test_a_body_beyond_the_limit_is_a_413_in_the_protocol_s_shape(house, path, chunked):
    async def pieces():
        for _ in range(17):
            yield b" " * 2**20

    data = pieces() if chunked else io.BytesIO(b" " * (17 * 2**20))
    headers = {"x-api-key": house.opened.api_key}
    async with aiohttp.ClientSession() as http, http.post(root(house.opened) + path, data=data, headers=headers) as response:
        assert response.status == 413
        told = await response.json()
    assert in_shape(path, told)
    assert "larger than 16 MiB (`gateway.max_body_mb`); send less" in told["error"]["message"]
    await still_serves(house)


async def test_a_body_at_the_limit_is_read(house):
    body = json.dumps(ASK).encode()
    status, _ = await post(house.opened, io.BytesIO(b" " * (GatewaySettings().max_body_mb * 2**20 - len(body)) + body), raw=True)
    assert status == 200


async def test_the_body_of_a_stranger_is_not_waited_for(house):
    async with line(house) as (reader, writer):
        writer.write(request(house, "/v1/messages", None, "Content-Length: 10000000", key="sk-wrong"))
        status, _, told = await answer(reader)
    assert status == 401
    assert in_shape("/v1/messages", told)


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
async def test_what_is_no_http_is_a_400_and_the_end_of_its_connection(house, head):
    async with line(house) as (reader, writer):
        writer.write(head.encode("latin-1") + b"\r\n\r\n")
        async with asyncio.timeout(30):
            told = await reader.read()
    assert told.startswith(b"HTTP/1.0 4")
    await still_serves(house)


@pytest.mark.parametrize(
    "chunks",
    [b"zz\r\nabc", b"2\r\n{}xx\r\n0\r\n\r\n", b"-2\r\n{}\r\n", b"fffffffffffffffffff\r\n{}", b"2\n{}\n0\n\n", b"\r\n"],
    ids=lambda chunks: chunks[:4].hex(),
)
async def test_a_malformed_chunked_body_is_a_4xx_and_the_end_of_its_connection(house, chunks):
    async with line(house) as (reader, writer):
        writer.write(request(house, "/v1/chat/completions", None, "Transfer-Encoding: chunked") + chunks)
        async with asyncio.timeout(30):
            told = await reader.read()
    assert told[:10] in {b"HTTP/1.0 4", b"HTTP/1.1 4"}
    await still_serves(house)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_body_broken_off_by_something_that_is_no_chunk_ends_with_its_connection(house, path, monkeypatch):
    monkeypatch.setattr(gateway_module, "BODY_SECONDS", 0.1)
    async with line(house) as (reader, writer):
        writer.write(request(house, path, None, "Transfer-Encoding: chunked") + b"1\r\n{\r\n")
        await asyncio.sleep(0.05)
        writer.write(b"zz\r\n")
        status, headers, told = await answer(reader)
        assert (status, headers["connection"]) == (408, "close")
        assert in_shape(path, told)
    await still_serves(house)


# ---------------------------------------------------------------- too slow, and half of it


async def test_clients_that_never_finish_their_request_keep_nobody_waiting(house):
    beginnings = [b"", b"POST /v1/chat", request(house)[:60], request(house, "/v1/messages", ASK)[:-10]]
    host, _, port = root(house.opened).removeprefix("http://").partition(":")
    writers = []
    for number in range(300):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(beginnings[number % len(beginnings)])
        writers.append(writer)
    await asyncio.sleep(0.05)
    await still_serves(house)
    for writer in writers:
        writer.close()
    await nothing_in_hand(house)


async def test_a_body_that_does_not_come_is_a_408(house, monkeypatch):
    monkeypatch.setattr(gateway_module, "BODY_SECONDS", 0.05)
    async with line(house) as (reader, writer):
        writer.write(request(house, "/v1/messages", ASK)[:-10])
        status, headers, told = await answer(reader)
    assert status == 408
    assert headers["connection"] == "close"
    assert in_shape("/v1/messages", told)
    await still_serves(house)


async def test_a_client_that_disconnects_during_its_upload_has_called_nobody(house):
    async with line(house) as (_, writer):
        writer.write(request(house, "/v1/chat/completions", ASK)[:-10])
        await writer.drain()
    await still_serves(house)
    assert house.manager.registry.get(house.opened.session).calls == 1
    assert len(house.parrot.prompts) == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_client_that_disconnects_during_generation_leaves_nothing_in_hand(house, stream, path):
    house.parrot.hold_at = 3
    async with line(house) as (reader, writer):
        writer.write(request(house, path, {**ASK, "stream": stream}))
        await house.parrot.held.wait()
        if stream:
            assert await reader.readuntil(b"\r\n\r\n")
        assert house.manager.registry.get(house.opened.session).running == 1
        assert house.manager.pool.in_flight == {"inference_worker-0": 1}
    await nothing_in_hand(house)
    async with asyncio.timeout(30):
        while house.parrot.running:  # noqa: ASYNC110 - the engine's slot is free, too
            await asyncio.sleep(0.005)
    turns = house.manager.registry.get(house.opened.session).interactions()
    assert [(len(turn.completion), turn.finish_reason) for turn in turns] == ([(3, "cancelled")] if stream else [])
    house.parrot.hold_at = -1
    await still_serves(house)
    assert [one.finish_reason for one in house.recorded() if one.finish_reason != "cancelled"] == ["stop"]


# ---------------------------------------------------------------- wrong doors


@pytest.mark.parametrize("path", [*PATHS, "/v1/nothing", "/v1/messages/batches", "/v1/messages/"])
@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "GET"])
async def test_a_wrong_method_or_path_is_refused_in_the_protocol_s_shape(house, path, method):
    async with line(house) as (reader, writer):
        writer.write(request(house, path, None, method=method))
        status, headers, told = await answer(reader)
    assert status == (405 if path in PATHS else 404)
    assert in_shape(path, told)
    assert status == 404 or headers["allow"] == "POST"
    assert status == 405 or "GET /openapi.json" in told["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/ready", "/metrics", "/openapi.json"])
async def test_head_tells_the_length_and_nothing_more(house, path):
    async with line(house) as (reader, writer):
        writer.write(request(house, path, None, method="HEAD") + request(house, path, None, "Connection: close", method="GET"))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        status, headers, _ = await answer(reader)
    assert status == 200
    assert path == "/metrics" or f"Content-Length: {headers['content-length']}" in head.decode()


async def test_a_connection_goes_on_after_an_error(house):
    wrong = [
        (request(house, body=b"{"), 400),
        (request(house, body=ASK, key="sk-wrong"), 401),
        (request(house, "/v1/nothing", ASK), 404),
        (request(house, "/v1/messages", ASK, method="PUT"), 405),
        (request(house, "/rl/session?session_id=x", method="GET", key="sk-no"), 401),
        (request(house, "/v1/chat/completions", ASK, "Content-Type: text/html"), 400),
    ]
    async with line(house) as (reader, writer):
        for sent, expected in wrong:
            writer.write(sent)
            status, _, _ = await answer(reader)
            assert status == expected
            writer.write(request(house, body=ASK))
            assert (await answer(reader))[0] == 200


async def test_requests_in_one_packet_are_answered_in_order(house):
    sent = [request(house, body=ASK), request(house, body=b"{"), request(house, "/v1/models", method="GET"), request(house, body=ASK)]
    async with line(house) as (reader, writer):
        writer.write(b"".join(sent))
        assert [(await answer(reader))[0] for _ in sent] == [200, 400, 200, 200]


# ---------------------------------------------------------------- its end


async def test_calls_in_hand_end_whole_while_new_connections_are_refused(house):
    house.parrot.hold_at = 3
    whole = asyncio.create_task(post(house.opened, ASK))
    await house.parrot.held.wait()
    async with line(house) as (reader, writer), line(house) as (idle, _):
        writer.write(request(house, body={**ASK, "stream": True}))
        await reader.readuntil(b"\r\n\r\n")
        stopping = asyncio.create_task(house.manager.gateway.stop())
        assert await idle.read() == b"", "a connection that waits for nothing is closed at once"
        with pytest.raises(aiohttp.ClientConnectorError):
            await post(house.opened, ASK)
        assert not stopping.done()
        house.parrot.go_on.set()
        status, told = await whole
        streamed = (await reader.read()).decode()
    assert (status, told["choices"][0]["message"]["content"]) == (200, "hi there")
    assert streamed.rstrip().endswith("data: [DONE]\n\n\r\n0".rstrip())
    pieces = [json.loads(text.partition("\n")[0]) for text in streamed.split("data: ")[1:] if text.startswith("{")]
    assert "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces) == "hi there"
    await asyncio.wait_for(stopping, 30)
    assert len(house.recorded()) == 2


async def test_a_call_that_does_not_end_is_broken_off_in_time(house, monkeypatch):
    monkeypatch.setattr(gateway_module, "SHUTDOWN_SECONDS", 0.1)
    async with opened_house() as brief:
        parrot = await brief.engine("inference_worker-0", Parrot(hold_at=3))
        opened = await brief.open(lease=60)
        asking = asyncio.create_task(post(opened, ASK))
        await parrot.held.wait()
        await asyncio.wait_for(brief.manager.gateway.stop(), 2)
        with pytest.raises(aiohttp.ClientError):
            await asking
        await nothing_in_hand(brief)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_when_the_run_stops_a_call_in_hand_is_told_at_once(house, path, stream):
    house.parrot.hold_at = 3
    async with line(house) as (reader, writer):
        writer.write(request(house, path, {**ASK, "stream": stream}))
        await house.parrot.held.wait()
        if stream:
            await reader.readuntil(b"\r\n\r\n")
        house.tasks["session_manager-0"].cancel()
        if stream:
            async with asyncio.timeout(30):
                text = (await reader.read()).decode()
            events = [json.loads(part.partition("\n")[0]) for part in text.split("data: ")[1:] if part.startswith("{")]
            told = next(event for event in events if "error" in event)
        else:
            status, _, told = await asyncio.wait_for(answer(reader), 30)
            assert status == 503
    assert in_shape(path, told)
    assert "the gateway is stopping" in told["error"]["message"]
    await asyncio.wait({house.tasks["session_manager-0"]}, timeout=30)
    assert house.tasks["session_manager-0"].done()
