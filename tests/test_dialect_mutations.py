"""Rich requests with one thing wrong in them: taken and answered, or refused by the name of a field."""

from __future__ import annotations

import copy
import json

import msgspec
import pytest
from support.dialect_harness import CALL, COMPLETIONS, MESSAGES, RESPONSES, SCHEMA

from areal_actors.core.errors import RequestError
from areal_actors.gateway.protocols import CHAT
from areal_actors.messages import ModelResponsePart

CHAT_BODY = {
    "messages": [
        {"role": "system", "content": "x"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "http://x"}}],
        },
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    "logit_bias": {"3": 1},
    "stop": ["a"],
    "stream_options": {"include_usage": True},
    "chat_template_kwargs": {"x": 1},
    "n": 2,
    "max_tokens": 3,
}
RESPONSES_BODY = {
    "input": [
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "http://x"}],
        },
        {"type": "reasoning", "id": "x", "summary": [], "content": [{"type": "reasoning_text", "text": "a"}]},
        {"type": "reasoning", "id": "y", "summary": [], "encrypted_content": "areal:aGk="},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "4"},
        {"type": "custom_tool_call", "call_id": "b", "name": "patch", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "b", "output": "done"},
        {"type": "additional_tools", "role": "developer", "tools": [{"type": "custom", "name": "exec"}]},
    ],
    "tools": [
        {"type": "function", "name": "f", "parameters": SCHEMA},
        {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
        {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "f"}, {"type": "tool_search"}]},
        {"type": "web_search", "filters": {"allowed_domains": ["a"]}},
    ],
    "client_metadata": {"a": "b"},
    "tool_choice": {"type": "function", "name": "f"},
    "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
    "reasoning": {"effort": "low"},
    "include": ["reasoning.encrypted_content"],
    "instructions": "x",
}
USE = {"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "x"}], "is_error": True}
MESSAGES_BODY = {
    "system": [{"type": "text", "text": "s"}],
    "max_tokens": 3,
    "messages": [
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "x", "signature": "s"}, {"type": "text", "text": "t"}, USE],
        },
        {"role": "user", "content": [RESULT, {"type": "image", "source": {"type": "url", "url": "http://x"}}]},
    ],
    "tools": [
        {"name": "f", "input_schema": SCHEMA, "strict": True},
        {"type": "web_search_20250305", "name": "web_search"},
    ],
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "tool_choice": {"type": "tool", "name": "f"},
    "thinking": {"type": "enabled", "budget_tokens": 3},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
    "thread": {"type": "continue", "previous_message_id": "x"},
    "stop_sequences": ["a"],
}
BODIES = [
    (CHAT, CHAT_BODY),
    (COMPLETIONS, {"prompt": [1, 2], "logprobs": 2, "n": 2, "best_of": 1, "echo": False, "suffix": "", "stop": "a"}),
    (RESPONSES, RESPONSES_BODY),
    (MESSAGES, MESSAGES_BODY),
]
ANSWER = ModelResponsePart(interaction="i", text="a", finish_reason="stop", last=True)
WRONG = (
    None,
    True,
    -1,
    1.5,
    2**70,
    "",
    "x",
    [],
    {},
    [None],
    [[]],
    {"type": "text"},
    {"type": "function"},
    "\0",
    [1, "a"],
)


def places(value, path=()):
    """Every place in a body but the body itself."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, held in inner:
        yield (*path, key)
        yield from places(held, (*path, key))


def mutations(body):
    """The body with one thing left out, or in place of one thing another, or with one field too many."""
    for *path, last in places(body):
        for wrong in (*WRONG, KeyError, AttributeError):
            mutated = copy.deepcopy(body)
            holder = mutated
            for key in path:
                holder = holder[key]
            if wrong is KeyError:
                del holder[last]
            elif wrong is not AttributeError:
                holder[last] = wrong
            elif isinstance(holder[last], dict):
                holder[last]["unheard_of"] = 1
            yield mutated


@pytest.mark.parametrize(("dialect", "body"), BODIES, ids=[dialect.name for dialect, _ in BODIES])
def test_one_thing_wrong_is_refused_by_name_or_answered_all_the_same(dialect, body):
    assert dialect.call(dialect.decode(json.dumps(body).encode()), "s").session == "s"
    refusals = 0
    for mutated in mutations(body):
        try:
            request = dialect.decode(json.dumps(mutated).encode())
            msgspec.msgpack.encode(dialect.call(request, "s"))
        except RequestError as refused:
            refusals += 1
            named = refused.field
        else:
            named = "none"
            assert all(field.isprintable() for field in dialect.ignored(request))
            assert msgspec.json.encode(dialect.answer(request, 1).whole([ANSWER]))
            assert dialect.answer(request, 1).part(ANSWER)
        assert named, mutated
    assert refusals > 50
