"""The unmodified Anthropic SDK against the dialects."""

from __future__ import annotations

import json

import anthropic
import pytest
from anthropic import beta_async_tool
from pydantic import BaseModel
from support.dialect_harness import response_parts, serving, tool_pieces

from areal_actors.messages import ModelResponsePart

USER = [{"role": "user", "content": "2 + 2?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"name": "weather", "description": "It", "input_schema": SCHEMA}
OURS = {"type": "function", "function": {"name": "weather", "description": "It", "parameters": SCHEMA}}


class Sum(BaseModel):
    total: int


@pytest.fixture
def client_of():
    return lambda served: anthropic.AsyncAnthropic(base_url=served.root, api_key="sk-test", max_retries=0)


def busy(call):
    return response_parts(
        {"reasoning": "hm "},
        {"reasoning": "hm"},
        {"text": "Let me "},
        {"text": "see."},
        *tool_pieces(0, "call_a", "weather", '{"city": ', '"Bonn"}'),
        *tool_pieces(1, "call_b", "weather"),
        finish_reason="tool_calls",
    )


async def test_a_message_has_its_blocks_and_counts(client_of):
    async with serving(busy) as served, client_of(served) as client:
        message = await client.messages.create(
            model="m",
            max_tokens=4096,
            system="Be brief.",
            messages=USER,
            tools=[TOOL],
            tool_choice={"type": "any"},
            metadata={},
        )
    assert (message.id, message.type, message.role, message.model, message.stop_reason) == (
        "task-1-0",
        "message",
        "assistant",
        "m",
        "tool_use",
    )
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert (message.content[0].thinking, message.content[1].text) == ("hm hm", "Let me see.")
    assert [(block.id, block.name, block.input) for block in message.content[2:]] == [
        ("call_a", "weather", {"city": "Bonn"}),
        ("call_b", "weather", {}),
    ]
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (8, 4, 5)
    assert usage.output_tokens_details.thinking_tokens == 2
    call = served.calls[0]
    assert call.messages == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"})
    assert (call.tools, call.tool_choice, call.sampling) == ((OURS,), "required", {"max_tokens": 4096})


@pytest.mark.parametrize(
    "script",
    [
        busy,
        lambda _: response_parts(),
        lambda _: response_parts({"text": "ab"}, stop_sequence="c"),
        lambda _: response_parts({"reasoning": "hm"}, finish_reason="length"),
    ],
    ids=["busy", "silent", "stopped", "cut"],
)
async def test_a_stream_adds_up_to_the_whole_message(script, client_of):
    async with serving(script) as served, client_of(served) as client:
        async with client.messages.stream(model="m", max_tokens=10, messages=USER, tools=[TOOL]) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_message()
        whole = await client.messages.create(model="m", max_tokens=10, messages=USER, tools=[TOOL])
    exact = {"exclude": {"parsed_output"}, "exclude_none": True, "warnings": False}
    assert [block.to_dict() for block in final.content] == [block.to_dict() for block in whole.content]
    assert final.usage == whole.usage
    assert (final.id, final.stop_reason, final.stop_sequence) == (whole.id, whole.stop_reason, whole.stop_sequence)
    assert final.model_dump(**exact).keys() == whole.model_dump(**exact).keys()
    assert events[0].type == "message_start"
    assert events[-1].type == "message_stop"


@pytest.mark.parametrize(
    ("finish_reason", "stop_sequence", "stop_reason"),
    [
        ("stop", "", "end_turn"),
        ("stop", "END", "stop_sequence"),
        ("length", "", "max_tokens"),
        ("tool_calls", "", "tool_use"),
    ],
)
async def test_stop_reasons_are_those_of_the_dialect(finish_reason, stop_sequence, stop_reason, client_of):
    def script(_):
        return response_parts({"text": "4"}, finish_reason=finish_reason, stop_sequence=stop_sequence)

    async with serving(script) as served, client_of(served) as client:
        message = await client.messages.create(model="m", max_tokens=10, messages=USER, stop_sequences=["END"])
    assert (message.stop_reason, message.stop_sequence) == (stop_reason, stop_sequence or None)
    assert served.calls[0].sampling["stop"] == ("END",)


async def test_the_model_s_output_comes_back_unchanged(client_of):
    async with serving(busy) as served, client_of(served) as client:
        first = await client.messages.create(model="m", max_tokens=10, messages=USER, tools=[TOOL])
        results = [
            {"type": "tool_result", "tool_use_id": "call_a", "content": [{"type": "text", "text": "dry"}]},
            {"type": "tool_result", "tool_use_id": "call_b", "content": "no such city", "is_error": True},
            {"type": "text", "text": "Go on."},
        ]
        turns = [*USER, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
        await client.messages.create(model="m", max_tokens=10, messages=turns, tools=[TOOL])
    answer, *rest = served.calls[1].messages[1:]
    assert (answer["content"], answer["reasoning_content"]) == ("Let me see.", "hm hm")
    assert [json.loads(call["function"]["arguments"]) for call in answer["tool_calls"]] == [{"city": "Bonn"}, {}]
    assert rest == [
        {"role": "tool", "content": "dry", "tool_call_id": "call_a"},
        {"role": "tool", "content": "Error: no such city", "tool_call_id": "call_b"},
        {"role": "user", "content": "Go on."},
    ]


@beta_async_tool
async def weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: Name of the city.
    """
    return f"dry in {city}"


def once_calling(call):
    if call.messages[-1]["role"] == "tool":
        return response_parts({"text": "Dry."}, interaction="task-1-1")
    return response_parts(*tool_pieces(0, "call_a", "weather", '{"city": "Bonn"}'), finish_reason="tool_calls")


@pytest.mark.parametrize("stream", [False, True])
async def test_the_tool_runner_continues_its_thread_with_the_result_alone(stream, client_of):
    async with serving(once_calling) as served, client_of(served) as client:
        runner = client.beta.messages.tool_runner(
            model="m", max_tokens=10, messages=USER, tools=[weather], system="Be brief.", stream=stream
        )
        final = await runner.until_done()
    assert final.content[0].text == "Dry."
    assert [body.get("thread", {}).get("type") for body in served.bodies] == ["create", "continue"]
    assert served.calls[1].continues == "task-1-0"
    assert served.calls[1].messages == ({"role": "tool", "content": "dry in Bonn", "tool_call_id": "call_a"},)


async def test_the_tool_runner_sends_everything_again_when_its_thread_is_unknown(client_of):
    lost = [ModelResponsePart(error="there is no earlier call", error_status=400, error_field="continues")]
    async with (
        serving(lambda call: lost if call.continues else once_calling(call)) as served,
        client_of(served) as client,
    ):
        runner = client.beta.messages.tool_runner(model="m", max_tokens=10, messages=USER, tools=[weather])
        final = await runner.until_done()
    assert final.content[0].text == "Dry."
    assert [len(call.messages) for call in served.calls] == [1, 1, 3]
    assert served.calls[2].messages[1]["tool_calls"][0]["id"] == "call_a"


async def test_counting_samples_nothing(client_of):
    async with (
        serving(lambda _: [ModelResponsePart(prompt_tokens=42, last=True)]) as served,
        client_of(served) as client,
    ):
        counted = await client.messages.count_tokens(model="m", system="Be brief.", messages=USER, tools=[TOOL])
    assert counted.input_tokens == 42
    assert served.calls[0].count_only
    assert len(served.calls[0].messages) == 2


async def test_parse_gives_the_schema_to_the_engine_and_the_object_to_the_client(client_of):
    async with serving(lambda _: response_parts({"text": '{"total": 4}'})) as served, client_of(served) as client:
        message = await client.messages.parse(model="m", max_tokens=10, messages=USER, output_format=Sum)
    assert message.parsed_output == Sum(total=4)
    assert json.loads(served.calls[0].constraint.text)["properties"]["total"]["type"] == "integer"


async def test_thinking_is_a_matter_of_the_template(client_of):
    async with serving(lambda _: response_parts({"text": "4"})) as served, client_of(served) as client:
        await client.messages.create(
            model="m", max_tokens=10, messages=USER, thinking={"type": "enabled", "budget_tokens": 1024}
        )
        await client.messages.create(model="m", max_tokens=10, messages=USER, thinking={"type": "disabled"})
        await client.messages.create(model="m", max_tokens=10, messages=USER, output_config={"effort": "low"})
    assert [call.template_kwargs for call in served.calls] == [
        {"enable_thinking": True},
        {"enable_thinking": False},
        {"reasoning_effort": "low"},
    ]


async def test_an_error_reaches_the_client_whole_or_in_the_middle_of_a_stream(client_of):
    failure = ModelResponsePart(interaction="task-1-0", error="no worker answered", error_status=503)
    streamed = [ModelResponsePart(interaction="task-1-0", text="It"), failure]
    async with serving(lambda call: streamed if call.stream else [failure]) as served, client_of(served) as client:
        with pytest.raises(anthropic.InternalServerError, match="no worker answered"):
            await client.messages.create(model="m", max_tokens=10, messages=USER)
        with pytest.raises(anthropic.APIStatusError, match="no worker answered"):
            [
                event
                async for event in await client.messages.create(model="m", max_tokens=10, messages=USER, stream=True)
            ]
        with pytest.raises(anthropic.BadRequestError, match="'max_tokens'"):
            await client.messages.create(model="m", max_tokens=0, messages=USER)
