"""Tokens of completed calls, the choice of trained ones, and keys in paths, at the gateway's real port."""

from __future__ import annotations

from types import SimpleNamespace

import openai
import pytest
from support.fake_engine import FixedTextEngine
from support.gateway_harness import HELLO, opened_gateway, post, root

from areal_actors.library.workflow import ArealOpenAI


@pytest.fixture
async def harness():
    async with opened_gateway() as harness:
        await harness.engine("inference_worker-0", FixedTextEngine())
        harness.opened = await harness.open()
        yield harness


async def asked(agent, messages=HELLO, **options):
    return await agent.chat.completions.create(model="default", messages=messages, **options)


def of(opened):
    return ArealOpenAI(base_url=opened.base_url, api_key=opened.api_key)


async def test_the_tokens_of_a_call_are_those_of_the_trajectory(harness):
    async with of(harness.opened) as agent:
        first = await asked(agent)
        second = await asked(
            agent, [*HELLO, {"role": "assistant", "content": "hi there"}, {"role": "user", "content": "again"}]
        )
        tokens = [await agent.get_tokens(answer.id) for answer in (first, second)]
    calls = (await harness.trajectory(harness.opened)).interactions
    assert [one.token_ids for one in tokens] == [call.completion.ids_array().tolist() for call in calls]
    assert [one.logprobs for one in tokens] == [call.completion.logprobs_array().tolist() for call in calls]
    assert [one.weight_versions for one in tokens] == [call.completion.versions_array().tolist() for call in calls]
    assert bytes(tokens[1].prompt_token_ids) == b"u:hello\na:hi there\nu:again\na:"
    assert [(one.parent, one.finish_reason) for one in tokens] == [("", "stop"), (first.id, "stop")]


async def test_a_call_that_is_not_selected_is_context(harness):
    async with of(harness.opened) as agent:
        first = await asked(agent)
        second = await asked(agent)
        await agent.select_trained([second.id])
        third = await asked(agent)
        with pytest.raises(
            openai.NotFoundError,
            match=f"no completed interaction '{first.id}' that is trained; it has {second.id}, {third.id}",
        ):
            await agent.select_trained([first.id, third.id])
    trajectory = await harness.trajectory(harness.opened)
    assert [(call.trained, call.reward) for call in trajectory.interactions] == [
        (False, None),
        (True, None),
        (True, 1.0),
    ]


async def test_only_completed_calls_of_the_own_session_have_tokens(harness):
    async with of(harness.opened) as agent:
        with pytest.raises(openai.NotFoundError, match="has no completed interaction 'other'; it has none"):
            await agent.get_tokens("other")
        with pytest.raises(openai.BadRequestError, match="no interaction given"):
            await agent.get_tokens("")
        with pytest.raises(openai.BadRequestError, match="interaction_ids"):
            await agent.select_trained([])
        answer = await asked(agent)
        await harness.trajectory(harness.opened)
        with pytest.raises(openai.APIStatusError, match="is over and no longer kept"):
            await agent.get_tokens(answer.id)
        with pytest.raises(openai.APIStatusError, match="is over or unknown"):
            await agent.select_trained([answer.id])


@pytest.mark.parametrize("key", ["DUMMY", "sk-of-another", ""])
async def test_a_path_with_the_sessions_key_needs_no_other(harness, key):
    opened = harness.opened
    base_url = f"{root(opened)}/{opened.api_key}/v1"
    async with openai.AsyncOpenAI(base_url=base_url, api_key=key or "none", max_retries=0) as agent:
        answer = await asked(agent)
        assert answer.choices[0].message.content == "hi there"
    async with of(SimpleNamespace(base_url=base_url, api_key=key or "none")) as agent:
        await agent.set_last_reward(0.5)
    assert (await harness.trajectory(opened, reward=None)).reward == 0.5


async def test_a_path_with_the_sessions_name_needs_its_key(harness):
    opened = harness.opened
    for headers, complaint in (({"Authorization": "Bearer DUMMY"}, "no session has this API key"), ({}, "no API key")):
        status, body = await post(opened, {"messages": HELLO}, headers=headers)
        assert (status, complaint in body["error"]["message"]) == (401, True)
