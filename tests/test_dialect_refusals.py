"""The dialects refuse invalid requests and name the field."""

from __future__ import annotations

import pytest
from support.dialect_harness import CALL, CHAT_TOOL, COMPLETIONS, COUNT, MESSAGES, RESPONSES, USER, called, turns

from areal_actors.core.errors import RequestError
from areal_actors.gateway.protocols import CHAT, DIALECTS

WEB_SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
CHAT_REFUSED = [
    ({"messages": []}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [{"content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
        "messages[0].content[0].type",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": "hi", "mood": "good"}]}, "messages[0].mood"),
    (turns({"role": "tool", "content": "4"}), "messages[1].tool_call_id"),
    (turns({"role": "tool", "content": "4", "tool_call_id": "c9"}), "messages[1].tool_call_id"),
    (turns({"role": "assistant", "tool_calls": [CALL, CALL]}), "messages[1].tool_calls[1].id"),
    (
        turns({"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f", "arguments": {}}}]}),
        "messages[1].tool_calls[0].function.arguments",
    ),
    (turns({"role": "assistant", "tool_calls": [{"function": CALL["function"]}]}), "messages[1].tool_calls[0].id"),
    (turns({"role": "assistant", "content": "hi", "function_call": {"name": "f"}}), "messages[1].function_call"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "warm"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"frequency_penalty": 3}, "frequency_penalty"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias[...]"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 5.5}, "max_tokens"),
    ({"max_tokens": 5, "max_completion_tokens": 5}, "max_completion_tokens"),
    ({"seed": 2**70}, "seed"),
    ({"n": 0}, "n"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop_token_ids": [3]}, "stop_token_ids"),
    ({"repetition_penalty": 1.2}, "repetition_penalty"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [CHAT_TOOL, CHAT_TOOL]}, "tools[1]"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"maximum": 2**70}}}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [CHAT_TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
    ({"tool_choice": "any"}, "tool_choice"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"audio": {"voice": "alloy", "format": "mp3"}}, "audio"),
    ({"modalities": ["text", "audio"]}, "modalities[1]"),
    ({"response_format": {"type": "grammar"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ({"chat_template_kwargs": {"x": 2**70}}, "chat_template_kwargs"),
    ({"reasoning_effort": "heroic"}, "reasoning_effort"),
    ({"frobnicate": 1}, "frobnicate"),
]
OTHERS_REFUSED = [
    (COMPLETIONS, {"prompt": ""}, "prompt"),
    (COMPLETIONS, {"prompt": []}, "prompt"),
    (COMPLETIONS, {"prompt": None}, "prompt"),
    (COMPLETIONS, {"prompt": ["a", "b"]}, "prompt"),
    (COMPLETIONS, {"prompt": [[1], [2]]}, "prompt"),
    (COMPLETIONS, {"prompt": [1, -2]}, "prompt[1]"),
    (COMPLETIONS, {"prompt": [1, "a"]}, "prompt"),
    (COMPLETIONS, {"echo": True}, "echo"),
    (COMPLETIONS, {"suffix": "x"}, "suffix"),
    (COMPLETIONS, {"best_of": 3}, "best_of"),
    (RESPONSES, {"input": []}, "input"),
    (RESPONSES, {"input": 3}, "input"),
    (RESPONSES, {"input": [{"role": "user"}]}, "input[0].content"),
    (
        RESPONSES,
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]},
        "input[0].content[0].type",
    ),
    (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}, "input[0].id"),
    (RESPONSES, {"input": [{"type": "item_reference", "id": "ws_x"}]}, "input[0].id"),
    (RESPONSES, {"input": [{"type": "item_reference"}]}, "input[0].id"),
    (RESPONSES, {"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type"),
    (RESPONSES, {"input": [{"type": ["message"]}]}, "input[0].type"),
    (RESPONSES, {"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]}, "input[0].call_id"),
    (RESPONSES, {"input": [{"type": "reasoning", "encrypted_content": "areal:*"}]}, "input[0].encrypted_content"),
    (RESPONSES, {"input": [{"type": "reasoning", "summary": []}]}, "input"),
    (RESPONSES, {"background": True}, "background"),
    (RESPONSES, {"conversation": "conv_1"}, "conversation"),
    (RESPONSES, {"prompt": {"id": "pmpt"}}, "prompt"),
    (RESPONSES, {"tools": [{"type": "code_interpreter"}]}, "tools[0].type"),
    (RESPONSES, {"tools": [{"type": None, "name": "f"}]}, "tools[0].type"),
    (
        RESPONSES,
        {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "namespace"}]}]},
        "tools[0].tools[0].type",
    ),
    (
        RESPONSES,
        {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]},
        "tools[0].tools[0].name",
    ),
    (RESPONSES, {"tools": [{"type": "custom", "name": "p", "format": {"type": "regex"}}]}, "tools[0].format.type"),
    (RESPONSES, {"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
    (RESPONSES, {"tools": [{"type": "web_search", "x": 2**70}]}, "tools"),
    (RESPONSES, {"tool_choice": {"type": "custom", "name": "p"}}, "tool_choice"),
    (RESPONSES, {"input": [USER, {"type": "additional_tools", "tools": 3}]}, "input[1].tools"),
    (RESPONSES, {"input": [USER, {"type": "additional_tools", "tools": [{"type": "mcp"}]}]}, "input[1].tools[0].type"),
    (RESPONSES, {"max_output_tokens": 0}, "max_output_tokens"),
    (RESPONSES, {"text": {"format": {"type": "grammar"}}}, "text.format.type"),
    (RESPONSES, {"top_p": 2}, "top_p"),
    (RESPONSES, {"frequency_penalty": 1}, "frequency_penalty"),
    (MESSAGES, {"max_tokens": None}, "max_tokens"),
    (MESSAGES, {"messages": [USER, {"role": "assistant", "content": "The answer is ("}]}, "messages"),
    (
        MESSAGES,
        {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
        "messages[0].content[0].type",
    ),
    (
        MESSAGES,
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]},
        "messages[0].content[0].tool_use_id",
    ),
    (MESSAGES, {"tools": [WEB_SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}}, "tool_choice"),
    (MESSAGES, {"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    (MESSAGES, {"thread": {"type": "continue"}}, "thread.previous_message_id"),
    (MESSAGES, {"stop_sequences": [""]}, "stop_sequences[0]"),
    (MESSAGES, {"tool_choice": {"type": "any"}}, "tool_choice"),
    (COUNT, {"max_tokens": 5}, "max_tokens"),
]


@pytest.mark.parametrize(("dialect", "fields", "named"), [*((CHAT, *case) for case in CHAT_REFUSED), *OTHERS_REFUSED])
def test_what_is_wrong_or_cannot_be_had_is_refused_by_name(dialect, fields, named):
    with pytest.raises(RequestError) as refused:
        called(dialect, **fields)
    assert refused.value.field == named
    assert named in str(refused.value)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"hi"', b"\xff", b'{"messages":"\xff"}', b'{"x":' * 5000, b"[" * 100_000, b"{}"]
)
def test_what_is_no_request_is_refused(dialect, body):
    with pytest.raises(RequestError):
        dialect.decode(body)
