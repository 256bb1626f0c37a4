"""Headers: request ids, what was ignored, names of conversations; and the probes of clients before their first call."""

from __future__ import annotations

import aiohttp
import pytest
from support.fake_engine import FixedTextEngine
from support.gateway_harness import HELLO, opened_gateway, root

SEARCH = {"type": "web_search_20250305", "name": "web_search"}
CALLS = {
    "/v1/chat/completions": {"messages": HELLO, "user": "me"},
    "/v1/completions": {"prompt": "u:hello\na:", "user": "me"},
    "/v1/responses": {"input": "hello", "user": "me"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 5, "metadata": {}},
    "/v1/messages/count_tokens": {"messages": HELLO, "speed": "fast"},
}


@pytest.fixture
async def harness():
    async with opened_gateway() as harness:
        await harness.engine("inference_worker-0", FixedTextEngine())
        harness.opened = await harness.open(lease=3600)
        async with aiohttp.ClientSession(root(harness.opened), headers={"x-api-key": harness.opened.api_key}) as http:
            harness.http = http
            yield harness


def id_in(path, headers):
    """The request id, under the name that the real service has for it, and under no other."""
    names = ("request-id", "x-request-id")
    own, other = names if "/messages" in path else names[::-1]
    assert other not in headers
    return headers[own]


@pytest.mark.parametrize("path", CALLS)
async def test_every_answer_has_a_request_id_of_its_own(harness, path):
    found = []
    for fields in ({}, {"stream": "no"}, {"frobnicate": 1}):
        for key in ({}, {"x-api-key": "sk-wrong"}):
            async with harness.http.post(path, json=CALLS[path] | fields, headers=key) as response:
                found.append(id_in(path, response.headers))
    async with harness.http.get(path) as response:
        assert response.status == 405
        found.append(id_in(path, response.headers))
    async with harness.http.get("/nothing") as response:
        found.append(id_in("/nothing", response.headers))
    assert len(set(found)) == len(found)
    assert all(one.startswith("req_") for one in found)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", CALLS)
async def test_what_is_ignored_is_in_a_header(harness, path, stream):
    if stream and path.endswith("count_tokens"):
        return
    ignored = [name for name in ("user", "metadata", "speed") if name in CALLS[path]]
    for fields, named in (
        (CALLS[path], ", ".join(ignored)),
        ({name: CALLS[path][name] for name in CALLS[path] if name not in ignored}, None),
    ):
        async with harness.http.post(path, json=fields | ({"stream": True} if stream else {})) as response:
            assert response.status == 200
            assert response.headers.get("x-areal-ignored") == named
            assert id_in(path, response.headers)
            await response.read()
        if not path.endswith("count_tokens"):
            assert ", ".join(harness.recorded()[-1].ignored) == (named or "")


async def test_the_header_is_also_in_an_error_of_the_call_and_short(harness):
    tools = [SEARCH] * 500
    async with harness.http.post(
        "/v1/messages", json=CALLS["/v1/messages"] | {"tools": tools, "temperature": 0.5}
    ) as response:
        assert (response.status, (await response.json())["error"]["field"]) == (400, "temperature")
    named = response.headers["x-areal-ignored"]
    assert named.startswith("metadata, tools[0] (web_search_20250305), tools[1] (web_search_20250305), ")
    assert named.endswith(" (web_search_20250305), ...")
    assert len(named) <= 1010


async def test_beta_headers_are_ignored(harness):
    beta = {"anthropic-beta": "context-management-2025-06-27", "anthropic-version": "2023-06-01"}
    async with harness.http.post("/v1/messages?beta=true", json=CALLS["/v1/messages"], headers=beta) as response:
        assert (response.status, response.headers["x-areal-ignored"]) == (200, "metadata, anthropic-beta")
    assert harness.recorded()[-1].ignored == ("metadata", "anthropic-beta")


async def test_a_client_may_probe_the_root(harness):
    for method in ("HEAD", "GET"):
        async with harness.http.request(method, "/") as response:
            assert response.status == 200


@pytest.mark.parametrize("prefix", ["", "/v1", "/{session}/v1"])
async def test_a_websocket_for_responses_is_refused_with_the_status_that_makes_clients_use_http(harness, prefix):
    path = f"{prefix.format(session=harness.opened.session)}/responses"
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await harness.http.ws_connect(path)
    assert refused.value.status == 426
    async with harness.http.post(path, json=CALLS["/v1/responses"]) as response:
        assert response.status == 200


async def test_a_call_is_described_with_the_name_that_its_client_gave_the_conversation(harness):
    for name in ("trace-1", "trace-2", None, "x" * 300):
        headers = {"X-Session-ID": name} if name else {}
        async with harness.http.post("/v1/chat/completions", json={"messages": HELLO}, headers=headers) as response:
            assert response.status == 200
    async with harness.http.get("/rl/session") as response:
        described = await response.json()
    assert [call["client_session"] for call in described["interactions"]] == ["trace-1", "trace-2", "", "x" * 256]
