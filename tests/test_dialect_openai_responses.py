"""OpenAI's Responses with the unmodified SDK."""

from __future__ import annotations

import json

import openai
import pytest
from support.dialect_harness import response_parts, serving, tool_pieces
from test_dialect_openai_sdk import CHAT_TOOL, USER, WEATHER, calling, thoughtful

FLAT_TOOL = {"type": "function", "name": "weather", "description": "It", "parameters": WEATHER, "strict": True}


@pytest.fixture
def client_of():
    return lambda served: openai.AsyncOpenAI(base_url=f"{served.root}/v1", api_key="sk-test", max_retries=0)


async def test_a_response_has_its_items_whole(client_of):
    async with serving(calling) as served, client_of(served) as client:
        answer = await client.responses.create(
            model="m",
            input="?",
            instructions="Be brief.",
            tools=[FLAT_TOOL],
            max_output_tokens=100,
            metadata={"a": "b"},
        )
    assert (answer.id, answer.status, answer.output_text, answer.error) == (
        "task-1-0",
        "completed",
        "Let me see.",
        None,
    )
    assert [item.type for item in answer.output] == ["message", "function_call", "function_call"]
    assert answer.output[0].content[0].annotations == []
    assert [(call.call_id, call.name, json.loads(call.arguments), call.status) for call in answer.output[1:]] == [
        ("call_a", "weather", {"city": "Bonn"}, "completed"),
        ("call_b", "weather", {"city": "Köln"}, "completed"),
    ]
    assert (answer.usage.input_tokens, answer.usage.input_tokens_details.cached_tokens, answer.usage.output_tokens) == (
        12,
        4,
        5,
    )
    assert (answer.instructions, answer.tools[0].name, answer.max_output_tokens, answer.metadata) == (
        "Be brief.",
        "weather",
        100,
        {"a": "b"},
    )
    assert served.calls[0].messages == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "?"})
    assert served.calls[0].tools == (CHAT_TOOL,)


async def test_the_summary_of_reasoning_is_the_reasoning(client_of):
    async with serving(thoughtful) as served, client_of(served) as client:
        for reasoning in ({"summary": "auto"}, {"generate_summary": "concise"}):
            whole = await client.responses.create(model="m", input="?", reasoning=reasoning)
            async with client.responses.stream(model="m", input="?", reasoning=reasoning) as stream:
                events = [event async for event in stream]
                final = await stream.get_final_response()
            assert [part.to_dict() for part in whole.output[0].summary] == [
                {"type": "summary_text", "text": "two twos"}
            ]
            assert (whole.output[0].content, whole.reasoning.summary) == ([], *reasoning.values())
            assert final.output[0].to_dict() == whole.output[0].to_dict()
            deltas = [event.delta for event in events if event.type == "response.reasoning_summary_text.delta"]
            assert deltas == ["two ", "twos"]
            kinds = [event.type.rpartition(".")[2] for event in events if "reasoning_summary_part" in event.type]
            assert kinds == ["added", "done"]
            assert all(event.summary_index == 0 for event in events if "reasoning_summary" in event.type)
            assert not [event for event in events if "reasoning_text" in event.type]
            await client.responses.create(model="m", input=[*USER, *whole.output, *USER])
            assert served.calls[-1].messages[1]["reasoning_content"] == "two twos"
        plain = await client.responses.create(model="m", input="?", reasoning={"summary": None})
    assert (plain.output[0].summary, plain.output[0].content[0].text) == ([], "two twos")


@pytest.mark.parametrize(
    "script", [thoughtful, calling, lambda _: response_parts()], ids=["thoughtful", "calling", "silent"]
)
async def test_a_response_stream_adds_up_to_the_whole_response(script, client_of):
    async with serving(script) as served, client_of(served) as client:
        async with client.responses.stream(model="m", input="?", tools=[FLAT_TOOL]) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        raw = [
            event async for event in await client.responses.create(model="m", input="?", tools=[FLAT_TOOL], stream=True)
        ]
        whole = await client.responses.create(model="m", input="?", tools=[FLAT_TOOL])
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events][:2] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"
    assert events[-1].response.output == final.output
    assert raw[-1].response.to_dict() == whole.to_dict()
    assert (final.id, final.output_text) == (whole.id, whole.output_text)
    done = [event.item.id for event in events if event.type == "response.output_item.done"]
    assert done == [item.id for item in whole.output] == [item.id for item in final.output]


async def test_an_item_of_a_response_ends_before_the_next_begins(client_of):
    def script(call):
        pieces = [
            {"reasoning": "hm"},
            {"text": "Let me "},
            {"text": "see."},
            *tool_pieces(0, "call_a", "weather", "{}"),
        ]
        return response_parts(*pieces, *tool_pieces(1, "call_b", "weather", "{}"), finish_reason="tool_calls")

    async with serving(script) as served, client_of(served) as client:
        asked = {"tools": [FLAT_TOOL], "include": ["reasoning.encrypted_content"], "store": False}
        events = [event async for event in await client.responses.create(model="m", input="?", stream=True, **asked)]
    ends = [(event.type.rpartition(".")[2], event.output_index) for event in events if "output_item" in event.type]
    assert ends == [(kind, index) for index in range(4) for kind in ("added", "done")]
    ended = [event.item for event in events if event.type == "response.output_item.done"]
    assert ended == events[-1].response.output
    assert ended[0].encrypted_content


async def test_text_after_a_tool_call_belongs_to_the_message_before_it(client_of):
    def script(call):
        pieces = [{"text": "Let me see."}, *tool_pieces(0, "call_a", "weather", "{}"), {"text": " It rains."}]
        return response_parts(*pieces, finish_reason="tool_calls")

    async with serving(script) as served, client_of(served) as client:
        async with client.responses.stream(model="m", input="?", tools=[FLAT_TOOL]) as stream:
            final = await stream.get_final_response()
        raw = [
            event async for event in await client.responses.create(model="m", input="?", tools=[FLAT_TOOL], stream=True)
        ]
    assert [item.type for item in final.output] == ["message", "function_call"]
    assert final.output_text == raw[-1].response.output_text == "Let me see. It rains."
    ended = {event.output_index: event.item for event in raw if event.type == "response.output_item.done"}
    assert list(ended.values()) == raw[-1].response.output


async def test_a_response_cut_by_length_is_incomplete(client_of):
    async with (
        serving(lambda _: response_parts({"text": "It"}, finish_reason="length")) as served,
        client_of(served) as client,
    ):
        answer = await client.responses.create(model="m", input="?")
        events = [event async for event in await client.responses.create(model="m", input="?", stream=True)]
    assert (answer.status, answer.incomplete_details.reason, answer.output[0].status) == (
        "incomplete",
        "max_output_tokens",
        "incomplete",
    )
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == "It"


async def test_a_turn_sent_back_as_items_is_one_message(client_of):
    def script(call):
        pieces = [{"reasoning": "hm"}, {"text": "Let me see."}, *tool_pieces(0, "call_a", "weather", '{"city":"Bonn"}')]
        return response_parts(*pieces, finish_reason="tool_calls")

    async with serving(script) as served, client_of(served) as client:
        first = await client.responses.create(
            model="m", input="?", tools=[FLAT_TOOL], include=["reasoning.encrypted_content"], store=False
        )
        output = {"type": "function_call_output", "call_id": "call_a", "output": "dry"}
        await client.responses.create(
            model="m", input=[{"role": "user", "content": "?"}, *first.output, output], tools=[FLAT_TOOL]
        )
        sealed = {
            "type": "reasoning",
            "summary": [],
            "id": "rs",
            "encrypted_content": first.output[0].encrypted_content,
        }
        await client.responses.create(model="m", input=[sealed, *first.output[1:], output], tools=[FLAT_TOOL])
        await client.responses.create(model="m", input=[output], previous_response_id=first.id, tools=[FLAT_TOOL])
    call = {"id": "call_a", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Bonn"}'}}
    turn = {"role": "assistant", "content": "Let me see.", "reasoning_content": "hm", "tool_calls": [call]}
    result = {"role": "tool", "content": "dry", "tool_call_id": "call_a"}
    assert served.calls[1].messages == ({"role": "user", "content": "?"}, turn, result)
    assert served.calls[2].messages == (turn, result)
    assert (served.calls[3].continues, served.calls[3].messages) == (first.id, (result,))
