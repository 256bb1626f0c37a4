"""Fields, items and tools that the gateway does not know: left out and listed; what changes what is sampled is refused
by name."""

from __future__ import annotations

import json
import typing

import anthropic.types.beta.message_create_params as anthropic_params
import openai.types.chat.completion_create_params as chat_params
import openai.types.responses.response_create_params as responses_params
import pytest
from support.dialect_harness import (
    CHAT_TOOL,
    COMPLETIONS,
    COUNT,
    LEAST,
    MESSAGES,
    RESPONSES,
    SCHEMA,
    USER,
    called,
    turns,
)

from areal_actors.core.errors import RequestError
from areal_actors.gateway.protocols import CHAT, DIALECTS
from areal_actors.gateway.protocols.lenient import accept

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USE = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
ECHOED = {
    "role": "assistant",
    "content": "hi",
    "reasoning_details": [{"type": "reasoning.text", "text": "x"}],
    "extra_content": {"google": {}},
    "provider_specific_fields": {"x": 1},
    "cache_control": {"type": "ephemeral"},
    "id": "msg_1",
    "timestamp": 3,
}
DEFAULTS = {
    "ignore_eos": False,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "min_tokens": 0,
    "include_stop_str_in_output": False,
    "guided_json": None,
    "length_penalty": 1.0,
    "add_generation_prompt": True,
    "bad_words": [],
}
HOSTED_ITEMS = [
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "x"},
    {"type": "mcp_call", "id": "mcp_1", "name": "f", "arguments": "{}", "server_label": "s"},
    {"type": "an_item_of_next_year", "x": {"type": "message"}},
]
HOSTED_BLOCKS = [
    {"type": "redacted_thinking", "data": "x"},
    {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}},
    {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []},
]


def accepted(dialect, **fields):
    return accept(dialect, json.dumps(LEAST[dialect.name] | fields).encode(), "s")[1:]


LISTED = [
    (CHAT, {"frobnicate": 1, "metadata2": {"a": "b"}}, {}, ["frobnicate", "metadata2"]),
    (CHAT, {"provider": {"order": ["x"]}, "new": None}, {}, ["provider"]),
    (CHAT, DEFAULTS, {}, [name for name in DEFAULTS if name != "guided_json"]),
    (CHAT, {"function_call": "auto", "functions": []}, {}, ["function_call"]),
    (
        CHAT,
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {"stream_options": {"include_usage": True}},
        None,
    ),
    (
        CHAT,
        turns(ECHOED),
        turns({"role": "assistant", "content": "hi"}),
        [f"messages[].{name}" for name in ECHOED if name not in ("role", "content", "provider_specific_fields")],
    ),
    (
        CHAT,
        turns({"role": "assistant", "content": None, "tool_calls": [CALL | {"extra_content": {"x": 1}}]}),
        turns({"role": "assistant", "content": None, "tool_calls": [CALL]}),
        ["messages[].tool_calls[].extra_content"],
    ),
    (CHAT, {"tools": [CHAT_TOOL, {"type": "web_search"}]}, {"tools": [CHAT_TOOL]}, ["tools[] (web_search)"]),
    (CHAT, {"name\n\r: é": 1}, {}, ["name?????"]),
    (
        RESPONSES,
        {"input": [USER, *HOSTED_ITEMS]},
        {"input": [USER]},
        [f"input[] ({item['type']})" for item in HOSTED_ITEMS],
    ),
    (RESPONSES, {"tools": [{"type": "file_search", "vector_store_ids": []}]}, {}, ["tools[] (file_search)"]),
    (RESPONSES, {"background_options": {}, "access_programs": []}, {}, ["background_options"]),
    (RESPONSES, {"include": ["everything"]}, {"include": ["everything"]}, []),
    (
        MESSAGES,
        {
            "messages": [
                USER,
                {"role": "assistant", "content": [*HOSTED_BLOCKS, {"type": "text", "text": "t"}, USE]},
                USER,
            ]
        },
        {"messages": [USER, {"role": "assistant", "content": [{"type": "text", "text": "t"}, USE]}, USER]},
        [f"messages[].content[] ({block['type']})" for block in HOSTED_BLOCKS],
    ),
    (MESSAGES, {"user_profile_id": "u", "workspace_id": "w", "container": "c", "betas": ["x"]}, {}, None),
    (MESSAGES, {"mcp_servers": [{"url": "x"}], "fallbacks": [{}]}, {}, []),
    (
        MESSAGES,
        {
            "tools": [
                {"name": "f", "input_schema": SCHEMA, "input_examples": [{}]},
                {"type": "code_execution_20260101", "name": "c"},
            ]
        },
        {"tools": [{"name": "f", "input_schema": SCHEMA}]},
        ["tools[] (code_execution_20260101)"],
    ),
    (COUNT, {"max_tokens2": 3}, {}, ["max_tokens2"]),
    (
        COMPLETIONS,
        {"ignore_eos": False, "use_beam_search": False, "trace": "x"},
        {},
        ["ignore_eos", "use_beam_search", "trace"],
    ),
]


@pytest.mark.parametrize(("dialect", "fields", "known", "listed"), LISTED)
def test_what_is_unknown_is_left_out_and_listed(dialect, fields, known, listed):
    call, left_out = accepted(dialect, **fields)
    assert call == called(dialect, **known)
    if listed is not None:
        assert list(left_out) == listed


@pytest.mark.parametrize(
    ("dialect", "fields", "named"),
    [
        (CHAT, {"ignore_eos": True}, "ignore_eos"),
        (CHAT, {"skip_special_tokens": False}, "skip_special_tokens"),
        (CHAT, {"min_tokens": 5}, "min_tokens"),
        (CHAT, {"structured_outputs": {"regex": "x"}, "anything": 1}, "structured_outputs"),
        (CHAT, {"enable_thinking": False}, "enable_thinking"),
        (CHAT, {"functions": [{"name": "f"}]}, "functions"),
        (CHAT, {"anything": 1, "temperature": -1}, "temperature"),
        (CHAT, turns({"role": "assistant", "content": "so", "prefix": True}), "messages[].prefix"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
            "messages[0].content[0].type",
        ),
        (CHAT, {"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
        (CHAT, {"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        (
            RESPONSES,
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]},
            "input[0].content[0].type",
        ),
        (RESPONSES, {"conversation": "conv_1"}, "conversation"),
        (RESPONSES, {"presence_penalty": 1}, "presence_penalty"),
        (MESSAGES, {"n": 4}, "n"),
        (MESSAGES, {"response_format": {"type": "json_object"}}, "response_format"),
        (
            MESSAGES,
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
            "messages[0].content[0].type",
        ),
        (MESSAGES, {"thinking": {"type": "next_year"}}, "thinking.type"),
    ],
)
def test_what_changes_the_samples_is_refused_by_name(dialect, fields, named):
    with pytest.raises(RequestError) as refused:
        accepted(dialect, **fields)
    assert refused.value.field == named
    assert named in str(refused.value)


@pytest.mark.parametrize("body", [b"", b"[]", b"[" * 100_000, b'{"messages":"\xff"}', b"{}", b'{"x": 1}'])
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_what_is_no_request_is_refused_in_every_mode(dialect, body):
    with pytest.raises(RequestError):
        accept(dialect, body, "s")


@pytest.mark.parametrize(
    ("dialect", "params"),
    [
        (CHAT, chat_params.CompletionCreateParamsNonStreaming),
        (RESPONSES, responses_params.ResponseCreateParamsNonStreaming),
        (MESSAGES, anthropic_params.MessageCreateParamsNonStreaming),
    ],
    ids=lambda case: getattr(case, "name", ""),
)
def test_every_field_of_the_installed_clients_is_taken_or_named(dialect, params):
    """Whatever the clients' newest versions may send: an object of another form is refused by the field's name, never
    by another."""
    refused = {}
    for field in set(typing.get_type_hints(params)) - set(LEAST[dialect.name]):
        try:
            accepted(dialect, **{field: {"anything": {"of": "next year"}}})
        except RequestError as error:
            refused[field] = error.field.partition(".")[0]
    assert refused
    assert [field for field, named in refused.items() if named != field] == []
