"""Fields and tools that clients add by themselves are accepted and reported; custom tools and namespaces are functions
for the model."""

from __future__ import annotations

import json

import openai
import pytest
from support.dialect_harness import (
    CHAT_TOOL,
    LEAST,
    MESSAGES,
    RESPONSES,
    SCHEMA,
    USER,
    called,
    response_parts,
    serving,
    tool_pieces,
)

from areal_actors.gateway.protocols import CHAT
from areal_actors.gateway.protocols.custom_tools import custom_arguments, custom_input
from areal_actors.gateway.protocols.hosted_tools import ANTHROPIC, OPENAI, is_hosted

EPHEMERAL = {"type": "ephemeral"}
FUNCTION = {"type": "function", "name": "f", "parameters": SCHEMA}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
CUSTOM = {"type": "custom", "name": "apply_patch", "description": "Edit files.", "format": GRAMMAR}
NAMESPACE = {
    "type": "namespace",
    "name": "mcp__files",
    "description": "Files.",
    "tools": [FUNCTION, FUNCTION | {"name": "g"}],
}
HINTED = ["stream_options.include_obfuscation", "cache_control"]
IGNORED = [
    (CHAT, {}, []),
    (CHAT, {"user": "me", "verbosity": "low", "metadata": None}, ["user", "verbosity"]),
    (
        CHAT,
        {"tools": [CHAT_TOOL | {"function": CHAT_TOOL["function"] | {"strict": True}}]},
        ["tools[].function.strict"],
    ),
    (
        CHAT,
        {"tools": [CHAT_TOOL | {"cache_control": EPHEMERAL}], "stream_options": {"include_obfuscation": False}},
        HINTED,
    ),
    (
        CHAT,
        {"messages": [{"role": "system", "content": [{"type": "text", "text": "s", "cache_control": EPHEMERAL}]}]},
        ["cache_control"],
    ),
    (RESPONSES, {}, []),
    (
        RESPONSES,
        {"tools": [FUNCTION | {"strict": False}], "truncation": "disabled", "text": {"format": {"type": "text"}}},
        [],
    ),
    (
        RESPONSES,
        {"client_metadata": {"a": "b"}, "prompt_cache_key": "k", "max_tool_calls": 2, "truncation": "auto"},
        ["client_metadata", "max_tool_calls", "prompt_cache_key", "truncation"],
    ),
    (
        RESPONSES,
        {"reasoning": {"summary": "auto", "mode": "pro"}, "text": {"verbosity": "low"}},
        ["reasoning.mode", "text.verbosity"],
    ),
    (
        RESPONSES,
        {
            "tools": [
                FUNCTION | {"strict": True},
                {"type": "web_search", "filters": {}},
                CUSTOM,
                {"type": "image_generation"},
            ]
        },
        ["tools[1] (web_search)", "tools[3] (image_generation)", "tools[].strict", "tools[].format"],
    ),
    (
        RESPONSES,
        {"tools": [NAMESPACE | {"tools": [FUNCTION | {"defer_loading": True}, {"type": "tool_search"}]}]},
        ["tools[0].tools[1] (tool_search)", "tools[0].tools[].defer_loading"],
    ),
    (MESSAGES, {}, []),
    (MESSAGES, {"metadata": {"user_id": "u"}, "context_management": {"edits": []}}, ["metadata", "context_management"]),
    (MESSAGES, {"thinking": {"type": "adaptive", "display": "omitted"}}, ["thinking.display"]),
    (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, ["thinking.budget_tokens"]),
    (
        MESSAGES,
        {"output_config": {"effort": "high", "task_budget": {"type": "tokens", "total": 9}}},
        ["output_config.task_budget"],
    ),
    (MESSAGES, {"cache_control": EPHEMERAL}, ["cache_control"]),
    (MESSAGES, {"system": [{"type": "text", "text": "s", "cache_control": EPHEMERAL}]}, ["cache_control"]),
    (
        MESSAGES,
        {"messages": [USER, {"role": "user", "content": [{"type": "text", "text": "s", "cache_control": EPHEMERAL}]}]},
        ["cache_control"],
    ),
    (
        MESSAGES,
        {
            "tools": [
                {
                    "name": "f",
                    "input_schema": SCHEMA,
                    "cache_control": EPHEMERAL,
                    "eager_input_streaming": True,
                    "strict": False,
                },
                {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
                {"type": "custom", "name": "g", "input_schema": SCHEMA, "defer_loading": True},
            ]
        },
        ["cache_control", "tools[1] (web_search_20250305)", "tools[].eager_input_streaming", "tools[].defer_loading"],
    ),
]


@pytest.mark.parametrize(("dialect", "fields", "ignored"), IGNORED)
def test_what_has_no_effect_is_accepted_and_reported(dialect, fields, ignored):
    request = dialect.decode(json.dumps(LEAST[dialect.name] | fields).encode())
    dialect.call(request, "s")
    assert list(dialect.ignored(request)) == ignored


def test_hosted_tools_are_not_shown_to_the_model():
    tools = [
        {"type": "web_search_20250305", "name": "web_search"},
        {"name": "f", "input_schema": SCHEMA, "defer_loading": True},
    ]
    assert called(MESSAGES, tools=tools).tools == called(CHAT, tools=[CHAT_TOOL]).tools
    assert (
        called(RESPONSES, tools=[{"type": "image_generation"}, FUNCTION]).tools == called(CHAT, tools=[CHAT_TOOL]).tools
    )


@pytest.mark.parametrize(
    "kind",
    [None, [], 3, "", "function", "mcp", "web_search_\n", "web_search_é", "web_search_" + "x" * 99, "bash_20250124"],
)
def test_only_known_types_are_hosted(kind):
    assert not is_hosted(kind, ANTHROPIC)
    assert not is_hosted(kind, OPENAI)


def test_custom_tools_and_namespaces_are_functions_of_the_model():
    tools = [tool["function"] for tool in called(RESPONSES, tools=[FUNCTION, CUSTOM, NAMESPACE]).tools]
    assert [tool["name"] for tool in tools] == ["f", "apply_patch", "mcp__files__f", "mcp__files__g"]
    assert tools[1]["parameters"]["required"] == ["input"]
    assert tools[1]["description"] == "Edit files.\n\nThe input follows this grammar (lark):\nstart: /.+/"
    assert (tools[2]["description"], tools[3].get("description")) == ("Files.", None)
    assert (
        called(RESPONSES, tools=[CUSTOM], tool_choice={"type": "custom", "name": "apply_patch"}).tool_choice
        == "function:apply_patch"
    )


def test_items_of_the_input_may_add_tools():
    items = [
        {"type": "additional_tools", "role": "developer", "tools": [NAMESPACE, {"type": "web_search"}]},
        {"role": "user", "content": "?"},
    ]
    request = RESPONSES.decode(json.dumps({"input": items, "tools": [FUNCTION]}).encode())
    call = RESPONSES.call(request, "s")
    assert [tool["function"]["name"] for tool in call.tools] == ["f", "mcp__files__f", "mcp__files__g"]
    assert call.messages == ({"role": "user", "content": "?"},)
    assert list(RESPONSES.ignored(request)) == ["input[0].tools[1] (web_search)"]


def test_their_calls_are_read_back_under_the_model_s_names():
    items = [
        {"role": "user", "content": "?"},
        {
            "type": "custom_tool_call",
            "call_id": "a",
            "name": "apply_patch",
            "input": 'a "b"\n',
            "id": "ctc_a",
            "status": "completed",
        },
        {"type": "function_call", "call_id": "b", "name": "f", "namespace": "mcp__files", "arguments": "{}"},
        {"type": "custom_tool_call_output", "call_id": "a", "output": "done"},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "read"}]},
    ]
    messages = called(RESPONSES, input=items, tools=[CUSTOM, NAMESPACE]).messages
    assert [call["function"] for call in messages[1]["tool_calls"]] == [
        {"name": "apply_patch", "arguments": '{"input":"a \\"b\\"\\n"}'},
        {"name": "mcp__files__f", "arguments": "{}"},
    ]
    assert [(message["tool_call_id"], message["content"]) for message in messages[2:]] == [("a", "done"), ("b", "read")]


@pytest.mark.parametrize("text", ["", "a", '{"a": 1}', "é\n\t\"'\\"])
def test_the_input_of_a_custom_tool_comes_back_exactly(text):
    assert custom_input(custom_arguments(text)) == text


@pytest.mark.parametrize(
    "arguments", ["", "{", "[]", "3", '{"text": "a"}', '{"input": 3}', '{"input": "a", "more": 1}', "[" * 2000]
)
def test_arguments_without_an_input_are_the_input(arguments):
    assert custom_input(arguments) == arguments


def patching(call):
    pieces = [
        *tool_pieces(0, "call_a", "apply_patch", '{"input": ', '"*** é', '\\n"}'),
        *tool_pieces(1, "call_b", "mcp__files__g", "{}"),
    ]
    return response_parts({"text": "Now."}, *pieces, finish_reason="tool_calls")


async def test_their_calls_reach_the_client_as_it_declared_the_tools():
    tools = [CUSTOM, NAMESPACE, {"type": "web_search"}]
    async with (
        serving(patching) as served,
        openai.AsyncOpenAI(base_url=f"{served.root}/v1", api_key="sk", max_retries=0) as client,
    ):
        whole = await client.responses.create(model="m", input="?", tools=tools)
        events = [
            event async for event in await client.responses.create(model="m", input="?", tools=tools, stream=True)
        ]
    custom, function = whole.output[1:]
    assert (custom.type, custom.call_id, custom.name, custom.input, custom.status) == (
        "custom_tool_call",
        "call_a",
        "apply_patch",
        "*** é\n",
        "completed",
    )
    assert (function.type, function.call_id, function.name, function.namespace) == (
        "function_call",
        "call_b",
        "g",
        "mcp__files",
    )
    assert events[-1].response.to_dict() == whole.to_dict()
    assert [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"] == ["*** é\n"]
    assert [event.input for event in events if event.type == "response.custom_tool_call_input.done"] == ["*** é\n"]
    done = [event.item.to_dict() for event in events if event.type == "response.output_item.done"]
    assert done == [item.to_dict() for item in whole.output]
    assert [tool.type for tool in whole.tools] == ["custom", "namespace", "web_search"]


async def test_an_edit_of_the_context_is_never_applied_and_the_answer_states_it():
    asked = MESSAGES.decode(
        json.dumps(
            LEAST["messages"] | {"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}}
        ).encode()
    )
    parts = response_parts({"text": "4"})
    whole = MESSAGES.answer(asked, 1).whole([parts[0]])
    assert whole["context_management"] == {"applied_edits": []}
    answer = MESSAGES.answer(asked, 1)
    delta = b"".join(map(answer.part, parts)).partition(b"event: message_delta\ndata: ")[2].partition(b"\n")[0]
    assert json.loads(delta)["context_management"] == {"applied_edits": []}
    plain = MESSAGES.decode(json.dumps(LEAST["messages"]).encode())
    assert "context_management" not in MESSAGES.answer(plain, 1).whole([parts[0]])


def test_tools_that_a_client_found_are_names_in_a_result():
    use = {"type": "tool_use", "id": "c", "name": "ToolSearch", "input": {}}
    result = {
        "type": "tool_result",
        "tool_use_id": "c",
        "content": [{"type": "tool_reference", "tool_name": "WebFetch"}],
    }
    call = called(
        MESSAGES, messages=[USER, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    )
    assert call.messages[-1] == {"role": "tool", "tool_call_id": "c", "content": "WebFetch"}
