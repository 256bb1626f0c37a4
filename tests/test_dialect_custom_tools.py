"""Custom tools and allowed tools of chat completions and Responses, with the unmodified OpenAI SDK."""

from __future__ import annotations

import json

import openai
import pytest
from support.dialect_harness import CHAT, CHAT_TOOL, RESPONSES, USER, called, response_parts, serving, tool_pieces

from areal_actors.core.errors import RequestError

TEXT = 'print("ü")\n'
ARGUMENTS = '{"input": "print(\\"\\u00fc\\")\\n"}'
CUSTOM = {"type": "custom", "custom": {"name": "python", "description": "Runs it."}}
GRAMMAR = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /x/"}}
SCHEMA = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


def calling(call):
    return response_parts(
        *tool_pieces(0, "c1", "python", ARGUMENTS[:9], ARGUMENTS[9:]),
        *tool_pieces(1, "c2", "f", '{"a":', "1}"),
        finish_reason="tool_calls",
    )


def client_of(served):
    return openai.AsyncOpenAI(base_url=f"{served.root}/v1", api_key="k", max_retries=0)


async def test_a_custom_tool_reaches_the_chat_client_as_text_and_comes_back_with_its_result():
    tools = [CUSTOM, CHAT_TOOL]
    async with serving(calling) as served, client_of(served) as client:
        answer = await client.chat.completions.create(model="m", messages=[USER], tools=tools, tool_choice="auto")
        custom, function = answer.choices[0].message.tool_calls
        assert (custom.id, custom.type, custom.custom.name, custom.custom.input) == ("c1", "custom", "python", TEXT)
        assert (function.type, function.function.arguments) == ("function", '{"a":1}')
        back = answer.choices[0].message.model_dump(exclude_none=True)
        results = [{"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in (custom, function)]
        await client.chat.completions.create(model="m", messages=[USER, back, *results], tools=tools)
    first, second = served.calls
    assert first.tools[0]["function"] == {"name": "python", "description": "Runs it.", "parameters": SCHEMA}
    _, answered, *returned = second.messages
    assert [call["function"] for call in answered["tool_calls"]] == [
        {"name": "python", "arguments": '{"input":"print(\\"ü\\")\\n"}'},
        {"name": "f", "arguments": '{"a":1}'},
    ]
    assert [message["tool_call_id"] for message in returned] == ["c1", "c2"]


async def test_the_deltas_of_a_custom_call_add_up_to_its_text():
    async with serving(calling) as served, client_of(served) as client:
        chunks = await client.chat.completions.create(
            model="m", messages=[USER], tools=[CUSTOM, CHAT_TOOL], stream=True
        )
        deltas = [
            delta for chunk in [chunk async for chunk in chunks] for delta in chunk.choices[0].delta.tool_calls or ()
        ]
    custom = [delta for delta in deltas if delta.index == 0]
    assert (custom[0].id, custom[0].type, custom[0].custom["name"]) == ("c1", "custom", "python")
    assert "".join(delta.custom["input"] for delta in custom) == TEXT
    assert [delta.id for delta in custom[1:]] == [None] * len(custom[1:])
    assert "".join(delta.function.arguments for delta in deltas if delta.index == 1) == '{"a":1}'


@pytest.mark.parametrize("stream", [False, True])
async def test_a_custom_call_whose_arguments_are_cut_is_handed_on_as_it_is(stream):
    def script(call):
        return response_parts(*tool_pieces(0, "c1", "python", '{"input": "a'), finish_reason="length")

    async with serving(script) as served, client_of(served) as client:
        answer = await client.chat.completions.create(model="m", messages=[USER], tools=[CUSTOM], stream=stream)
        if stream:
            deltas = [
                delta
                for chunk in [chunk async for chunk in answer]
                for delta in chunk.choices[0].delta.tool_calls or ()
            ]
            text = "".join(delta.custom["input"] for delta in deltas)
        else:
            text = answer.choices[0].message.tool_calls[0].custom.input
    assert text == '{"input": "a'


def test_the_grammar_of_a_custom_tool_is_in_its_description():
    call = called(CHAT, tools=[{"type": "custom", "custom": {"name": "x", "format": GRAMMAR}}])
    assert call.tools[0]["function"]["description"] == "The input follows this grammar (lark):\nstart: /x/"


def test_a_choice_of_a_custom_tool_forces_its_call():
    assert (
        called(CHAT, tools=[CUSTOM], tool_choice={"type": "custom", "custom": {"name": "python"}}).tool_choice
        == "function:python"
    )


ALLOWED = {
    CHAT.name: (
        CHAT,
        {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": [{"type": "custom", "custom": {"name": "python"}}]},
        },
        [CUSTOM, CHAT_TOOL],
    ),
    RESPONSES.name: (
        RESPONSES,
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "custom", "name": "python"}, {"type": "mcp", "server_label": "s"}],
        },
        [{"type": "custom", "name": "python"}, {"type": "function", "name": "f", "parameters": {}}],
    ),
}


@pytest.mark.parametrize("protocol", ALLOWED)
def test_allowed_tools_restrict_the_calls_and_not_the_prompt(protocol):
    dialect, choice, tools = ALLOWED[protocol]
    call = called(dialect, tools=tools, tool_choice=choice)
    assert (call.tool_choice, call.allowed_tools) == ("required", ("python",))
    assert call.tools == called(dialect, tools=tools).tools
    assert called(dialect, tools=tools).allowed_tools == ()


def test_allowed_tools_that_are_all_hosted_allow_no_call_and_are_listed():
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "s"}]}
    request = {"input": "hi", "tools": [{"type": "function", "name": "f", "parameters": {}}], "tool_choice": choice}
    asked = RESPONSES.decode(json.dumps(request).encode())
    call = RESPONSES.call(asked, "s")
    assert (call.tool_choice, call.allowed_tools) == ("none", ())
    assert RESPONSES.ignored(asked) == ["tool_choice.tools[0] (mcp)"]


@pytest.mark.parametrize(
    ("dialect", "fields", "field"),
    [
        (CHAT, {"tools": [{"type": "custom"}]}, "tools[0].custom"),
        (CHAT, {"tools": [CHAT_TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        (CHAT, {"tools": [CHAT_TOOL], "tool_choice": {"type": "custom", "custom": {"name": "f2"}}}, "tool_choice"),
        (
            CHAT,
            {
                "tools": [CHAT_TOOL],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": [{"type": "function"}]},
                },
            },
            "tool_choice.allowed_tools.tools[0].function.name",
        ),
        (
            RESPONSES,
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "f"}]}},
            "tool_choice",
        ),
        (
            RESPONSES,
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mystery"}]}},
            "tool_choice.tools[0].type",
        ),
        (
            RESPONSES,
            {"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp"}]}},
            "tool_choice",
        ),
        (RESPONSES, {"tool_choice": {"type": "shell"}}, "tool_choice"),
    ],
)
def test_a_tool_or_choice_without_its_parts_is_refused_by_name(dialect, fields, field):
    with pytest.raises(RequestError) as refused:
        called(dialect, **fields)
    assert refused.value.field == field
