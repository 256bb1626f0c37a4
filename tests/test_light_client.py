"""The light client beside the OpenAI SDK: the same calls of the same gateway, with equal answers."""

from __future__ import annotations

import copy
import json
import pickle
from contextlib import asynccontextmanager

import openai
import pytest
from openai.types import completion_usage
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionMessage,
    ChatCompletionTokenLogprob,
    chat_completion,
    chat_completion_chunk,
)
from support.fake_engine import FixedTextEngine
from support.framework_harness import FINAL, assert_extends, call, opened_chat_gateway
from support.gateway_harness import HELLO, client, nothing_in_flight, opened_gateway
from support.samples import work

from areal_actors.client import LightClient, errors
from areal_actors.client import answers as light_answers
from areal_actors.client.answers import AnswerObject
from areal_actors.core.values import SamplingParams
from areal_actors.gateway.settings import GatewaySettings

VARYING = {"id", "created", "created_at", "completed_at", "interaction_id", "call_id", "item_id", "obfuscation"}
"""Fields that differ from call to call."""
TOOL = {
    "type": "function",
    "function": {
        "name": "multiply",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    },
}
CUSTOM = {"type": "custom", "custom": {"name": "shell", "description": "Runs a line."}}
USER = [{"role": "user", "content": "9 times 2?"}]
MULTIPLY = call("multiply", '{"a": 9, "b": 2}')


def without_varying(value):
    """Plain values without the fields that vary, and without those that are null."""
    if isinstance(value, dict):
        kept = {name: member for name, member in value.items() if name not in VARYING and member is not None}
        return {name: without_varying(member) for name, member in kept.items()}
    return [without_varying(member) for member in value] if isinstance(value, list) else value


def light(opened, **options):
    return LightClient(**{"base_url": opened.base_url, "api_key": opened.api_key, "max_retries": 0, **options})


@asynccontextmanager
async def both(harness):
    """The SDK and the light client, each with a session of its own."""
    sampling = SamplingParams(max_tokens=400)
    first, second = [await harness.open(work(name, sampling=sampling)) for name in ("0.0", "1.0")]
    async with client(first) as sdk:
        yield sdk, light(second)


def assert_equal(ours, theirs):
    """The light client's answer has what the SDK's has, by attribute and as plain values."""
    assert without_varying(ours.model_dump(exclude_none=True)) == without_varying(theirs.model_dump(exclude_none=True))
    assert_readable(ours, theirs)


def assert_readable(ours, theirs):
    """Each attribute of the SDK's object is one of the light client's."""
    for name, expected in theirs:
        found = getattr(ours, name)
        if hasattr(expected, "model_dump"):
            assert isinstance(found, AnswerObject), name
            assert_readable(found, expected)
        elif isinstance(expected, list):
            for one, other in zip(found, expected, strict=True):
                if hasattr(other, "model_dump"):
                    assert_readable(one, other)
        elif name not in VARYING:
            assert found == expected, name


CHAT_CALLS = {
    "text": (FINAL, {}),
    "two answers": (FINAL, {"n": 2}),
    "log-probabilities": (FINAL, {"logprobs": True, "top_logprobs": 2}),
    "tool call": ("I see.\n" + MULTIPLY, {"tools": [TOOL]}),
    "tool call of a custom tool": (call("shell", '{"input": "ls -l"}'), {"tools": [CUSTOM]}),
    "cut off": (FINAL, {"max_tokens": 3}),
    "further fields": (FINAL, {"extra_body": {"next_year": {"a": 1}}, "extra_headers": {"X-Session-ID": "second"}}),
}


@pytest.mark.parametrize("name", CHAT_CALLS)
async def test_a_chat_completion_has_the_fields_of_the_sdk(name):
    line, fields = CHAT_CALLS[name]
    async with opened_chat_gateway() as harness, both(harness) as (sdk, ours):
        found = []
        for one in (ours, sdk):
            harness.script.lines = [line] * 2
            found.append(await one.chat.completions.create(model="default", messages=USER, **fields))
    assert_equal(*found)
    assert found[0].choices[0].finish_reason == {"cut off": "length"}.get(
        name, "tool_calls" if "tool" in name else "stop"
    )


@pytest.mark.parametrize("name", [name for name in CHAT_CALLS if name != "two answers"])
async def test_a_streamed_chat_completion_has_the_chunks_of_the_sdk(name):
    line, fields = CHAT_CALLS[name]
    options = {**fields, "stream": True, "stream_options": {"include_usage": True}}
    async with opened_chat_gateway() as harness, both(harness) as (sdk, ours):
        found = []
        for one in (ours, sdk):
            harness.script.lines = [line]
            stream = await one.chat.completions.create(model="default", messages=USER, **options)
            found.append([chunk async for chunk in stream])
    assert len(found[0]) > 2
    for one, other in zip(*found, strict=True):
        assert_equal(one, other)
    assert found[0][-1].usage.completion_tokens > 0


RESPONSES = {
    "text": (FINAL, {}),
    "tool call": ("I see.\n" + MULTIPLY, {"tools": [{"type": "function", **TOOL["function"], "strict": False}]}),
    "cut off": (FINAL, {"max_output_tokens": 16}),
}


@pytest.mark.parametrize("name", RESPONSES)
async def test_a_response_has_the_fields_of_the_sdk(name):
    line, fields = RESPONSES[name]
    async with opened_chat_gateway() as harness, both(harness) as (sdk, ours):
        found, events = [], []
        for one in (ours, sdk):
            harness.script.lines = [line] * 2
            found.append(await one.responses.create(model="default", input="9 times 2?", **fields))
            stream = await one.responses.create(model="default", input="9 times 2?", stream=True, **fields)
            events.append([event async for event in stream])
    mine, theirs = found
    assert without_varying(mine.model_dump(exclude_none=True)) == without_varying(theirs.model_dump(exclude_none=True))
    assert mine.output_text == theirs.output_text
    assert [item.type for item in mine.output] == [item.type for item in theirs.output]
    assert (mine.usage.output_tokens, mine.status) == (theirs.usage.output_tokens, theirs.status)
    assert [event.type for event in events[0]] == [event.type for event in events[1]]
    assert events[0][-1].response.output_text == events[1][-1].response.output_text
    for one, other in zip(*events, strict=True):
        assert without_varying(one.model_dump(exclude_none=True)) == without_varying(
            other.model_dump(exclude_none=True)
        )


async def test_a_conversation_with_a_tool_continues_token_for_token():
    """The message is sent back once as the object that it is, and once as plain values."""

    async def agent(task, *, base_url, api_key):
        ours = LightClient(base_url=base_url, api_key=api_key, max_retries=0, timeout=None)
        messages = [{"role": "user", "content": task["question"]}]
        for place in range(3):
            answer = await ours.chat.completions.create(model="default", messages=messages, tools=[TOOL])
            message = answer.choices[0].message
            if not message.tool_calls:
                break
            arguments = json.loads(message.tool_calls[0].function.arguments)
            messages.append(message.model_dump(exclude_none=True) if place else message)
            result = str(arguments["a"] * arguments["b"])
            messages.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": result})
        return message.content

    async with opened_chat_gateway() as harness:
        output, trajectory = await harness.play(agent, [MULTIPLY, MULTIPLY, FINAL])
        assert output == FINAL
        assert len(trajectory.interactions) == 3
        assert_extends(harness, trajectory)


@pytest.fixture
async def slow():
    """A gateway whose engine samples no token until `go_on`."""
    async with opened_gateway(GatewaySettings(keep_alive_seconds=0.05)) as harness:
        harness.slow_engine = await harness.engine("inference_worker-0", FixedTextEngine(hold_at=2))
        harness.opened = await harness.open()
        yield harness


async def test_a_call_that_times_out_ends_in_the_gateway(slow):
    ours = light(slow.opened, timeout=0.3)
    with pytest.raises(errors.APITimeoutError, match="timed out"):
        await ours.chat.completions.create(model="m", messages=HELLO)
    await nothing_in_flight(slow)
    slow.slow_engine.go_on.set()
    answer = await ours.chat.completions.create(model="m", messages=HELLO, timeout=60)
    assert answer.choices[0].message.content == "hi there"


async def test_a_stream_that_is_left_early_ends_in_the_gateway(slow):
    async with await light(slow.opened).chat.completions.create(model="m", messages=HELLO, stream=True) as stream:
        async for _ in stream:
            break
        assert slow.slow_engine.running == 1
    await nothing_in_flight(slow)


async def test_errors_of_the_gateway_are_those_of_the_sdk():
    long = [{"role": "user", "content": "x" * 100_000}]
    calls = [({"messages": long}, {}), ({"messages": []}, {}), ({"messages": USER}, {"api_key": "none"})]
    async with opened_chat_gateway() as harness, both(harness) as (sdk, ours):
        for fields, options in calls:
            with pytest.raises(openai.APIStatusError) as theirs:
                await sdk.with_options(**options).chat.completions.create(model="m", **fields)
            with pytest.raises(errors.APIStatusError) as mine:
                await ours.with_options(**options).chat.completions.create(model="m", **fields)
            one, other = mine.value, theirs.value
            assert type(one).__name__ == type(other).__name__
            assert (one.status_code, one.code, one.param, one.type) == (
                other.status_code,
                other.code,
                other.param,
                other.type,
            )
            assert (str(one), one.body) == (str(other), other.body)


KINDS = {
    light_answers.ChatCompletion: ChatCompletion,
    light_answers.AnsweredChoice: chat_completion.Choice,
    light_answers.ChoiceLogprobs: chat_completion.ChoiceLogprobs,
    light_answers.AnsweredMessage: ChatCompletionMessage,
    light_answers.CompletionUsage: completion_usage.CompletionUsage,
    light_answers.CompletionTokens: completion_usage.CompletionTokensDetails,
    light_answers.PromptTokens: completion_usage.PromptTokensDetails,
    light_answers.ChatCompletionChunk: ChatCompletionChunk,
    light_answers.ChoiceDelta: chat_completion_chunk.Choice,
    light_answers.MessageDelta: chat_completion_chunk.ChoiceDelta,
    light_answers.ToolCallDelta: chat_completion_chunk.ChoiceDeltaToolCall,
    light_answers.FunctionDelta: chat_completion_chunk.ChoiceDeltaToolCallFunction,
    light_answers.SampledLogprob: ChatCompletionTokenLogprob,
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_field_that_a_server_leaves_out_is_none_as_in_the_sdk(kind):
    left_out = [name for name, field in KINDS[kind].model_fields.items() if not field.is_required()]
    assert left_out
    assert {name: getattr(kind({}), name) for name in left_out} == dict.fromkeys(left_out)
    assert set(kind.__annotations__) <= set(KINDS[kind].model_fields)


def test_an_answer_is_copied_compared_pickled_and_changed():
    body = {"id": "1", "choices": [{"index": 0, "message": {"content": "hi", "new_field": {"a": 1}}}]}
    answer = light_answers.ChatCompletion(body)
    assert answer.choices[0].message.new_field == {"a": 1}
    for other in (copy.deepcopy(answer), pickle.loads(pickle.dumps(answer))):
        assert other == answer
        other.choices[0].message.content = "changed"
        assert other != answer
        assert other.model_dump(exclude_unset=True)["choices"][0]["message"]["content"] == "changed"
    assert json.loads(answer.model_dump_json(exclude_none=True)) == body
    with pytest.raises(AttributeError):
        _ = answer.choices[0].message.unknown
