"""The unmodified OpenAI SDK against the dialects."""

from __future__ import annotations

import json

import openai
import pytest
from pydantic import BaseModel
from support.dialect_harness import response_parts, serving, tool_pieces

from areal_actors.messages import ModelResponsePart, TokenLogprob

USER = [{"role": "user", "content": "2 + 2?"}]
TOKENS = (
    TokenLogprob(token=b"\xe2\x82", logprob=-0.5, top=((b"\xe2\x82", -0.5), (b"x", -1.5))),
    TokenLogprob(token=b"\xac", logprob=-0.25, top=((b"\xac", -0.25),)),
)
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
CHAT_TOOL = {"type": "function", "function": {"name": "weather", "description": "It", "parameters": WEATHER}}


class Sum(BaseModel):
    total: int


@pytest.fixture
def client_of():
    return lambda served: openai.AsyncOpenAI(base_url=f"{served.root}/v1", api_key="sk-test", max_retries=0)


def thoughtful(call):
    return response_parts({"reasoning": "two "}, {"reasoning": "twos"}, {"text": "It is "}, {"text": "4."})


def calling(call):
    return response_parts(
        {"text": "Let me see."},
        *tool_pieces(0, "call_a", "weather", '{"city": ', '"Bonn"}'),
        *tool_pieces(1, "call_b", "weather", '{"city":"Köln"}'),
        finish_reason="tool_calls",
    )


async def test_a_chat_completion_has_all_that_clients_read(client_of):
    async with serving(thoughtful) as served, client_of(served) as client:
        answer = await client.chat.completions.create(
            model="m", messages=USER, metadata={"a": "b"}, user="me", store=False
        )
    choice = answer.choices[0]
    assert (answer.id, answer.object, answer.model, answer.created) == (
        "task-1-0",
        "chat.completion",
        "m",
        1_700_000_000,
    )
    assert (choice.index, choice.finish_reason, choice.message.role, choice.message.content) == (
        0,
        "stop",
        "assistant",
        "It is 4.",
    )
    assert choice.message.reasoning_content == "two twos"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (12, 5, 17)
    assert (
        answer.usage.prompt_tokens_details.cached_tokens,
        answer.usage.completion_tokens_details.reasoning_tokens,
    ) == (4, 2)


async def test_a_chat_stream_adds_up_to_the_whole_answer(client_of):
    async with serving(thoughtful) as served, client_of(served) as client:
        async with client.chat.completions.stream(
            model="m", messages=USER, stream_options={"include_usage": True}
        ) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_completion()
        whole = await client.chat.completions.create(model="m", messages=USER)
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].message.reasoning_content == "two twos"
    assert (final.id, final.usage, final.choices[0].finish_reason) == (whole.id, whole.usage, "stop")


async def test_usage_comes_in_a_stream_only_if_it_was_asked_for(client_of):
    async with serving(thoughtful) as served, client_of(served) as client:
        plain = [chunk async for chunk in await client.chat.completions.create(model="m", messages=USER, stream=True)]
        asked = await client.chat.completions.create(
            model="m", messages=USER, stream=True, stream_options={"include_usage": True}
        )
        counted = [chunk async for chunk in asked]
    assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in plain)
    assert counted[-1].usage.total_tokens == 17
    assert counted[-1].choices == []
    assert len(counted) == len(plain) + 1
    assert plain[0].choices[0].delta.role == "assistant"
    assert {chunk.id for chunk in plain} == {"task-1-0"}


async def test_tool_calls_come_whole_and_in_pieces_alike(client_of):
    async with serving(calling) as served, client_of(served) as client:
        whole = await client.chat.completions.create(
            model="m", messages=USER, tools=[CHAT_TOOL], tool_choice="required"
        )
        async with client.chat.completions.stream(model="m", messages=USER, tools=[CHAT_TOOL]) as stream:
            streamed = (await stream.get_final_completion()).choices[0]
    for choice in (whole.choices[0], streamed):
        calls = [
            (call.id, call.type, call.function.name, json.loads(call.function.arguments))
            for call in choice.message.tool_calls
        ]
        assert calls == [
            ("call_a", "function", "weather", {"city": "Bonn"}),
            ("call_b", "function", "weather", {"city": "Köln"}),
        ]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "Let me see."
    assert served.calls[0].tool_choice == "required"
    assert served.calls[0].tools == (CHAT_TOOL,)


async def test_the_model_s_output_comes_back_unchanged(client_of):
    async with serving(calling) as served, client_of(served) as client:
        first = await client.chat.completions.create(model="m", messages=USER, tools=[CHAT_TOOL])
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": "dry"} for call in first.choices[0].message.tool_calls
        ]
        await client.chat.completions.create(
            model="m", messages=[*USER, first.choices[0].message, *results], tools=[CHAT_TOOL]
        )
    answer = served.calls[1].messages[1]
    assert (answer["role"], answer["content"]) == ("assistant", "Let me see.")
    assert [call["function"]["arguments"] for call in answer["tool_calls"]] == ['{"city": "Bonn"}', '{"city":"Köln"}']
    assert [message["tool_call_id"] for message in served.calls[1].messages[2:]] == ["call_a", "call_b"]


async def test_several_choices_bear_the_id_of_the_first_whichever_speaks_first(client_of):
    parts = [
        ModelResponsePart(interaction="s.1", choice=1, text="b"),
        ModelResponsePart(interaction="s", choice=0, text="a"),
        ModelResponsePart(interaction="s.1", choice=1, finish_reason="stop", prompt_tokens=9, completion_tokens=2),
        ModelResponsePart(
            interaction="s", choice=0, finish_reason="length", prompt_tokens=9, completion_tokens=3, last=True
        ),
    ]
    async with serving(lambda _: parts) as served, client_of(served) as client:
        whole = await client.chat.completions.create(model="m", messages=USER, n=2)
        chunks = [
            chunk async for chunk in await client.chat.completions.create(model="m", messages=USER, n=2, stream=True)
        ]
    assert served.calls[0].choices == 2
    assert [
        (choice.index, choice.message.content, choice.finish_reason, choice.interaction_id) for choice in whole.choices
    ] == [
        (0, "a", "length", "s"),
        (1, "b", "stop", "s.1"),
    ]
    assert (whole.id, whole.usage.prompt_tokens, whole.usage.completion_tokens) == ("s", 9, 5)
    assert {chunk.id for chunk in chunks} == {"s"}
    assert sorted((c.index, c.delta.content) for chunk in chunks for c in chunk.choices if c.delta.content) == [
        (0, "a"),
        (1, "b"),
    ]


async def test_log_probabilities_have_the_bytes_of_tokens_that_are_half_a_character(client_of):
    async with (
        serving(lambda _: response_parts({"text": "€", "logprobs": TOKENS})) as served,
        client_of(served) as client,
    ):
        whole = await client.chat.completions.create(model="m", messages=USER, logprobs=True, top_logprobs=2)
        chunks = [
            c async for c in await client.chat.completions.create(model="m", messages=USER, logprobs=True, stream=True)
        ]
        response = await client.responses.create(
            model="m", input="?", include=["message.output_text.logprobs"], top_logprobs=2
        )
    assert served.calls[0].logprobs
    assert served.calls[0].sampling["top_logprobs"] == 2
    content = whole.choices[0].logprobs.content
    assert bytes(content[0].bytes + content[1].bytes).decode() == "€"
    assert [(token.logprob, [top.logprob for top in token.top_logprobs]) for token in content] == [
        (-0.5, [-0.5, -1.5]),
        (-0.25, [-0.25]),
    ]
    assert chunks[0].choices[0].logprobs.content == content
    assert [token.logprob for token in response.output[0].content[0].logprobs] == [-0.5, -0.25]


async def test_parse_gives_the_schema_to_the_engine_and_the_object_to_the_client(client_of):
    async with serving(lambda _: response_parts({"text": '{"total": 4}'})) as served, client_of(served) as client:
        chat = await client.chat.completions.parse(model="m", messages=USER, response_format=Sum)
        response = await client.responses.parse(model="m", input="2 + 2?", text_format=Sum)
    assert chat.choices[0].message.parsed == Sum(total=4)
    assert response.output_parsed == Sum(total=4)
    for call in served.calls:
        assert call.constraint.kind == "json_schema"
        assert json.loads(call.constraint.text)["properties"]["total"]["type"] == "integer"


async def test_completions_take_text_and_token_ids(client_of):
    async with (
        serving(lambda _: response_parts({"text": "4", "logprobs": TOKENS}, {"text": "!"})) as served,
        client_of(served) as client,
    ):
        text = await client.completions.create(model="m", prompt="2 + 2 =", max_tokens=3, logprobs=1)
        await client.completions.create(model="m", prompt=[1, 2, 70_000])
        chunks = [
            chunk async for chunk in await client.completions.create(model="m", prompt=["one"], stream=True, logprobs=0)
        ]
    assert (text.object, text.choices[0].text, text.choices[0].finish_reason) == ("text_completion", "4!", "stop")
    assert text.choices[0].logprobs.token_logprobs == [-0.5, -0.25]
    assert text.choices[0].logprobs.text_offset == [0, 1]
    assert [call.prompt for call in served.calls] == ["2 + 2 =", None, "one"]
    assert [call.prompt_ids for call in served.calls] == [None, b"\x01\0\0\0\x02\0\0\0\x70\x11\x01\0", None]
    assert "".join(chunk.choices[0].text for chunk in chunks) == "4!"
    assert served.calls[2].logprobs


@pytest.mark.parametrize("ask", ["chat", "responses", "completions"])
async def test_an_error_reaches_the_client_whole_or_in_the_middle_of_a_stream(ask, client_of):
    failure = ModelResponsePart(interaction="task-1-0", error="no worker answered", error_status=503)
    streamed = [ModelResponsePart(interaction="task-1-0", text="It"), failure]
    async with serving(lambda call: streamed if call.stream else [failure]) as served, client_of(served) as client:
        create, asked = {
            "chat": (client.chat.completions.create, {"messages": USER}),
            "responses": (client.responses.create, {"input": "?"}),
            "completions": (client.completions.create, {"prompt": "?"}),
        }[ask]
        with pytest.raises(openai.InternalServerError, match="no worker answered"):
            await create(model="m", **asked)
        with pytest.raises(openai.APIError, match="no worker answered"):
            [event async for event in await create(model="m", stream=True, **asked)]
        with pytest.raises(openai.BadRequestError, match="top_p") as wrong:
            await create(model="m", top_p=7, **asked)
    assert (wrong.value.param, wrong.value.type) == ("top_p", "invalid_request_error")
