"""Errors of the gateway when a client, a worker or an agent does something wrong: never a 500."""

from __future__ import annotations

import asyncio
import io
import json

import aiohttp
import openai
import pytest
from support.fake_engine import FixedTextEngine
from support.gateway_harness import HELLO, client, opened_gateway, post, root
from support.samples import published

from areal_actors.core.errors import SetupError
from areal_actors.gateway.settings import GatewaySettings


@pytest.fixture
async def harness():
    async with opened_gateway() as harness:
        harness.parrot = await harness.engine("inference_worker-0", FixedTextEngine())
        yield harness


# ---------------------------------------------------------------- the client's errors


@pytest.mark.parametrize(
    ("fields", "field", "complaint"),
    [
        (
            {"extra_body": {"ignore_eos": True}},
            "ignore_eos",
            "'ignore_eos' is not supported by this gateway; it changes what is sampled",
        ),
        ({"extra_body": {"temperature": "hot"}}, "temperature", "'temperature' is wrong: expected `float"),
        ({"temperature": -1.0}, "temperature", "'temperature' is wrong: expected `float` >= 0"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "max_completion_tokens", "set only one"),
        ({"max_tokens": 0}, "max_tokens", "'max_tokens'"),
        ({"n": 0}, "n", "'n' is wrong: expected `int` >= 1"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "missing"),
        ({"extra_body": {"seed": 10**30}}, "seed", "'seed' is wrong: expected `int` <= 9223372036854775807"),
        ({"messages": []}, "messages", "of length >= 1"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "robot"),
        (
            {"messages": [{"role": "user", "content": "x" * 400}]},
            "messages",
            "prompt is too long: 405 tokens > 300 maximum",
        ),
    ],
)
async def test_a_wrong_request_is_a_400_that_names_the_field(harness, fields, field, complaint):
    opened = await harness.open()
    async with client(opened) as agent:
        with pytest.raises(openai.BadRequestError) as caught:
            await agent.chat.completions.create(**{"model": "m", "messages": HELLO, **fields})
    assert caught.value.param == field
    assert complaint in caught.value.message
    assert not harness.recorded()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b'{"messages": NaN}',
        b'{"messages": "\xff"}',
        b"[" * 100_000,
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}',
        b'{"messages": [{"role": "user", "content": "x"}], "seed": ' + b"9" * 5000 + b"}",
        b'{"messages": [{"role": "user", "content": "x"}], "stream_options": [1], "stream": true}',
        b'{"messages": [{"role": "user", "content": "x"}], "stream": "no"}',
        b'{"messages": [{"role": "user", "content": "x"}], "stop": {"a": 1}}',
    ],
)
async def test_whatever_is_sent_is_a_400_and_never_a_500(harness, body):
    opened = await harness.open()
    status, answer = await post(opened, body, raw=True)
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert not harness.recorded()


async def test_a_body_beyond_the_limit_is_refused(harness):
    opened = await harness.open()
    async with (
        aiohttp.ClientSession() as http,
        http.post(
            f"{opened.base_url}/chat/completions",
            data=io.BytesIO(b" " * (17 * 2**20)),
            headers={"x-api-key": opened.api_key},
        ) as response,
    ):
        assert response.status == 413


# ---------------------------------------------------------------- workers that fail


async def asked(agent, *, stream):
    """The text of an answer, whole or from its chunks."""
    answer = await agent.chat.completions.create(model="m", messages=HELLO, stream=stream)
    if not stream:
        return answer.choices[0].message.content
    return "".join([chunk.choices[0].delta.content or "" async for chunk in answer])


async def test_without_a_worker_a_call_is_a_503_within_the_timeout():
    async with opened_gateway() as harness:
        opened = await harness.open(lease=3.0)
        async with client(opened) as agent:
            with pytest.raises(
                openai.InternalServerError, match=r"no inference worker has come up within 3 s"
            ) as caught:
                await agent.chat.completions.create(model="m", messages=HELLO)
        assert caught.value.status_code == 503


@pytest.mark.parametrize("stream", [False, True])
async def test_a_worker_killed_in_mid_completion_is_replaced_and_the_columns_are_whole(harness, stream):
    harness.parrot.hold_at = 4
    opened = await harness.open()

    async def ask():
        async with client(opened) as agent:
            return await asked(agent, stream=stream)

    asking = asyncio.create_task(ask())
    await harness.parrot.held.wait()
    await harness.publish(published(1))
    other = await harness.engine("inference_worker-1", FixedTextEngine())
    await harness.kill("inference_worker-0")
    assert await asking == "hi there"
    (turn,) = (await harness.trajectory(opened)).interactions
    assert "".join(map(chr, turn.completion.ids_array())) == "hi there\n"
    assert len(turn.completion.logprobs_array()) == 9
    assert turn.completion.versions_array().tolist() == ([0] * 4 + [1] * 5 if stream else [1] * 9)
    assert other.texts == ["u:hello\na:hi t" if stream else "u:hello\na:"]


async def test_a_worker_that_comes_back_after_its_death_is_used_again_without_new_weights(harness):
    opened = await harness.open()
    await harness.kill("inference_worker-0")
    await harness.engine("inference_worker-0", FixedTextEngine("back again"))
    async with client(opened) as agent:
        answer = await agent.chat.completions.create(model="m", messages=HELLO)
    assert answer.choices[0].message.content == "back again"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_disconnects_takes_its_call_with_it(harness, stream):
    harness.parrot.hold_at = 2
    opened = await harness.open()
    async with client(opened, timeout=0.2) as agent:
        with pytest.raises(openai.APITimeoutError):
            await asked(agent, stream=stream)
    async with asyncio.timeout(300):
        while harness.manager.registry.get(opened.session).running:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.005)
    harness.parrot.go_on.set()
    async with client(opened) as agent:
        again = await agent.chat.completions.create(model="m", messages=HELLO)
    assert [turn.id for turn in (await harness.trajectory(opened)).interactions] == [again.id]


# ---------------------------------------------------------------- rewards


async def reward(opened, body, prefix="/{session}"):
    url = root(opened) + prefix.format(session=opened.session) + "/rl/set_reward"
    async with (
        aiohttp.ClientSession() as http,
        http.post(url, data=json.dumps(body), headers={"Authorization": f"Bearer {opened.api_key}"}) as response,
    ):
        return response.status, await response.json()


@pytest.mark.parametrize("prefix", ["", "/{session}"])
async def test_an_agent_may_reward_its_interactions(harness, prefix):
    opened = await harness.open()
    async with client(opened) as agent:
        first = await agent.chat.completions.create(model="m", messages=HELLO)
        await agent.chat.completions.create(model="m", messages=HELLO)
    assert await reward(opened, {"interaction_id": first.id, "reward": 0.5}, prefix) == (200, {"status": "ok"})
    assert await reward(opened, {"interaction_id": None, "reward": 1}, prefix) == (200, {"status": "ok"})
    turns = (await harness.trajectory(opened, reward=None)).interactions
    assert [turn.reward for turn in turns] == [0.5, 1.0]


@pytest.mark.parametrize(
    ("body", "status", "complaint"),
    [
        ({"reward": 1.0}, 404, "no completed interaction"),
        ({"reward": 1.0, "interaction_id": "else"}, 404, "no completed interaction 'else'"),
        ({"reward": 1.0, "interaction_id": 5}, 400, "'interaction_id' is wrong"),
        ({}, 400, "'reward' is missing"),
        ({"reward": "1"}, 400, "'reward' is '1'; expected a finite number"),
        ({"reward": 1e300}, 400, "'reward' is wrong: expected `float` <= 1000000000"),
        ({"reward": [1]}, 400, "'reward' is [1]"),
        ({"reward": 10**400}, 400, "expected a finite number"),
        ({"reward": float("nan")}, 400, "expected a finite number"),
        ([1], 400, "expected `object`"),
    ],
)
async def test_a_reward_that_cannot_be_taken_is_refused_by_name(harness, body, status, complaint):
    got, answer = await reward(await harness.open(), body)
    assert got == status
    assert complaint in answer["error"]["message"]


# ---------------------------------------------------------------- its own life


async def test_a_port_that_is_taken_is_named(harness):
    port = int(root(await harness.open()).rpartition(":")[2])
    with pytest.raises(ExceptionGroup) as caught:
        async with opened_gateway(GatewaySettings(port=port)):
            pass
    assert caught.group_contains(SetupError, match=rf"gateway.port: cannot listen on 127.0.0.1:{port}")


async def test_the_port_is_free_again_after_the_end():
    async with opened_gateway() as harness:
        port = int(root(await harness.open()).rpartition(":")[2])
    async with opened_gateway(GatewaySettings(port=port)) as harness:
        assert (await harness.open()).base_url.startswith(f"http://127.0.0.1:{port}/")
