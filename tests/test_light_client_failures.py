"""Retries, limits, broken connections, proxies and settings of the light client, before a server that misbehaves."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from email.utils import formatdate

import openai
import pytest
from aiohttp import web

from areal_actors.client import LightClient, connections, errors
from areal_actors.client.retries import seconds_before_retry

BODY = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": []}
CALL = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@asynccontextmanager
async def served(*answers):
    """A server that gives these answers in turn; yields its address and the requests that it got.

    An answer is a status with headers, bytes to send before the connection is cut, or seconds of silence.
    """
    requests = []

    async def answer(request):
        requests.append({"headers": request.headers.copy(), "body": await request.json(), "query": dict(request.query)})
        kind = answers[min(len(requests), len(answers)) - 1]
        if isinstance(kind, float):
            await asyncio.sleep(kind)
        if isinstance(kind, bytes):
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            await response.write(kind)
            if not kind.endswith(b"[DONE]\n\n"):
                request.transport.abort()
            return response
        if isinstance(kind, tuple):
            status, headers = kind
            return web.json_response({"error": {"message": "no", "code": "c"}}, status=status, headers=headers)
        return web.json_response(BODY)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1", requests
    finally:
        await runner.cleanup()


SOON = {"retry-after-ms": "1"}


async def test_a_call_is_sent_again_with_the_same_key_until_it_succeeds():
    async with served((503, SOON), (429, SOON), "whole") as (base_url, requests):
        answer = await LightClient(base_url=base_url, api_key="k").chat.completions.create(**CALL)
    assert answer.id == "1"
    assert len(requests) == 3
    assert len({request["headers"]["Idempotency-Key"] for request in requests}) == 1
    assert {request["headers"]["Authorization"] for request in requests} == {"Bearer k"}
    assert all(request["body"] == CALL for request in requests)


@pytest.mark.parametrize(
    ("answer", "retries", "calls"),
    [
        ((503, SOON), 2, 3),
        ((503, SOON), 0, 1),
        ((400, SOON), 2, 1),
        ((409, SOON), 1, 2),
        ((503, {"x-should-retry": "false"}), 2, 1),
        ((400, {"x-should-retry": "true", **SOON}), 1, 2),
        ((429, {"retry-after": "300"}), 2, 1),
    ],
)
async def test_the_number_of_calls_is_that_of_the_sdk(answer, retries, calls):
    async with served(answer) as (base_url, requests):
        for kind in (LightClient, openai.AsyncOpenAI):
            requests.clear()
            client = kind(base_url=base_url, api_key="k", max_retries=retries)
            with pytest.raises((errors.APIStatusError, openai.APIStatusError)) as raised:
                await client.chat.completions.create(**CALL)
            await client.close()
            assert len(requests) == calls
            assert (raised.value.status_code, str(raised.value)) == (answer[0], f"Error code: {answer[0]} - no")
            assert raised.value.code == "c"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 418, 422, 429, 500, 503])
def test_an_error_has_the_class_of_the_sdk(status):
    import httpx2  # noqa: PLC0415 - the SDK's own

    request = httpx2.Request("POST", "http://localhost")
    theirs = openai.AsyncOpenAI(api_key="k")._make_status_error_from_response(
        httpx2.Response(status, request=request, text="plain")
    )
    assert type(errors.status_error(status, {}, b"plain")).__name__ == type(theirs).__name__


def test_the_wait_before_a_retry_grows_and_follows_the_server():
    lost = errors.APIConnectionError("lost")
    waits = [seconds_before_retry(lost, number) for number in range(7)]
    assert all(0.75 * longest <= wait <= longest for wait, longest in zip(waits, [0.5, 1, 2, 4, 8, 8, 8], strict=True))
    at = formatdate(time.time() + 20, usegmt=True)
    assert 15 < seconds_before_retry(errors.status_error(429, {"retry-after": at}, b""), 0) <= 20
    assert seconds_before_retry(errors.status_error(429, {"retry-after": "7"}, b""), 0) == 7
    assert seconds_before_retry(errors.APIResponseValidationError("no JSON"), 0) is None


async def test_a_server_that_is_not_there_is_a_connection_error_with_its_address():
    client = LightClient(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
    with pytest.raises(errors.APIConnectionError, match=r"127\.0\.0\.1:9/v1/chat/completions") as raised:
        await client.chat.completions.create(**CALL)
    assert not isinstance(raised.value, errors.APITimeoutError)
    assert raised.value.__cause__ is not None


async def test_a_silent_server_is_a_timeout_and_a_cut_connection_is_retried():
    async with served(5.0, b"{", "whole") as (base_url, requests):
        client = LightClient(base_url=base_url, api_key="k", timeout=0.2)
        with pytest.raises(errors.APITimeoutError):
            await client.with_options(max_retries=0).chat.completions.create(**CALL)
        assert (await client.chat.completions.create(**CALL)).id == "1"
    assert len(requests) == 3


async def test_an_answer_that_is_no_json_object_is_refused():
    async with served(b"no JSON data: [DONE]\n\n") as (base_url, _):
        client = LightClient(base_url=base_url, api_key="k", max_retries=0)
        with pytest.raises(errors.APIResponseValidationError, match="not JSON"):
            await client.chat.completions.create(**CALL)


STREAMS = {
    "an error event": (b'data: {"error": {"message": "engine lost", "code": "e"}}\n\n', errors.APIError, "engine lost"),
    "a broken connection": (b'data: {"id": "1", "choices": []}\n\n', errors.APIConnectionError, "broke off"),
    "no JSON": (b"data: {\n\ndata: [DONE]\n\n", errors.APIResponseValidationError, "not JSON"),
}


@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_that_fails_raises(name):
    sent, kind, text = STREAMS[name]
    async with served(sent) as (base_url, _):
        client = LightClient(base_url=base_url, api_key="k", max_retries=0)
        with pytest.raises(kind, match=text):
            async for _chunk in await client.chat.completions.create(**CALL, stream=True):
                pass


async def test_lines_of_a_stream_may_end_in_any_way_and_hold_comments():
    sent = b': keep-alive\r\n\r\nevent: x\r\ndata: {"id":\r\ndata:  "1", "choices": []}\r\n\r\ndata: [DONE]\n\n'
    async with served(sent) as (base_url, requests):
        client = LightClient(base_url=base_url, api_key="k", max_retries=0)
        chunks = [chunk async for chunk in await client.chat.completions.create(**CALL, stream=True)]
        assert requests[0]["body"]["stream"] is True
    assert [chunk.id for chunk in chunks] == ["1"]


async def test_settings_come_from_the_arguments_and_from_the_environment(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(errors.OpenAIError, match="OPENAI_API_KEY"):
        LightClient()
    async with served("whole") as (base_url, requests):
        monkeypatch.setenv("OPENAI_BASE_URL", base_url + "/")
        monkeypatch.setenv("OPENAI_API_KEY", "of the environment")
        client = LightClient(default_headers={"X-One": "1"}, max_retries=0)
        await client.chat.completions.create(
            **CALL, extra_headers={"X-Two": "2"}, extra_query={"q": "3"}, extra_body={"seed": 4}
        )
        await client.with_options(api_key="other").chat.completions.create(**CALL)
    first, second = requests
    assert first["headers"]["Authorization"] == "Bearer of the environment"
    assert (first["headers"]["X-One"], first["headers"]["X-Two"]) == ("1", "2")
    assert (first["query"], first["body"]) == ({"q": "3"}, {**CALL, "seed": 4})
    assert second["headers"]["Authorization"] == "Bearer other"
    assert second["headers"]["X-One"] == "1"
    assert "Idempotency-Key" not in first["headers"]


async def test_a_value_that_json_cannot_have_is_named():
    client = LightClient(base_url="http://127.0.0.1:9/v1", api_key="k")
    with pytest.raises(TypeError, match="JSON cannot have: <object"):
        await client.chat.completions.create(model="m", messages=[object()])


def test_proxies_of_the_environment_are_used_except_for_their_exceptions(monkeypatch):
    for name in connections.PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert connections.proxy_of("http://gateway:1/v1") is None
    monkeypatch.setenv("http_proxy", "http://proxy:2")
    monkeypatch.setenv("no_proxy", "gateway")
    assert connections.proxy_of("http://gateway:1/v1") is None
    assert connections.proxy_of("http://other:1/v1") == "http://proxy:2"


def test_connections_end_with_their_event_loop(recwarn):
    reported = []

    async def ask(answered):
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))
        async with served("whole") as (base_url, _):
            clients = [LightClient(base_url=base_url, api_key="k") for _ in range(3)]
            answers = await asyncio.gather(*(one.chat.completions.create(**CALL) for one in clients))
            answered += [answer.id for answer in answers]
            pool = await connections.open_pool()
            assert len(pool.connector._conns) == 1
        return pool

    answered = []
    pools = [asyncio.run(ask(answered)) for _ in range(2)]
    assert answered == ["1"] * 6
    assert all(pool.closed for pool in pools)
    assert connections._pools == {}
    assert reported == []
    assert [warning for warning in recwarn if issubclass(warning.category, ResourceWarning)] == []
