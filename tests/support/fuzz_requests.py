"""Requests of strangers: right ones, ones with something wrong in them, and anything that bytes can be."""

from __future__ import annotations

import copy
import json

from hypothesis import strategies as st

TOOL = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 3}},
    "required": ["a"],
    "additionalProperties": False,
}
CALLED = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
CHAT = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [CALLED]},
        {"role": "tool", "tool_call_id": "c", "content": "4"},
    ],
    "tools": [{"type": "function", "function": TOOL}],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "temperature": 0.5,
    "stop": ["zz"],
    "n": 2,
    "logprobs": True,
    "top_logprobs": 2,
    "logit_bias": {"3": 1},
    "stream": False,
    "stream_options": {"include_usage": True},
    "chat_template_kwargs": {"x": 1},
    "max_tokens": 9,
    "seed": 1,
}
COMPLETION = {
    "prompt": [[1, 2, 3]],
    "logprobs": 2,
    "n": 2,
    "stop": "zz",
    "max_tokens": 9,
    "stream": False,
    "suffix": "",
}
RESPONSE = {
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "id": "x", "summary": [], "encrypted_content": "areal:aGk="},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "4"},
    ],
    "instructions": "i",
    "tools": [{"type": "function", **TOOL}],
    "tool_choice": {"type": "function", "name": "f"},
    "include": ["reasoning.encrypted_content"],
    "metadata": {"a": "b"},
    "previous_response_id": None,
    "reasoning": {"effort": "low"},
    "max_output_tokens": 9,
    "stream": False,
}
MESSAGES = {
    "system": [{"type": "text", "text": "s"}],
    "max_tokens": 9,
    "messages": [
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "4", "is_error": True}]},
    ],
    "tools": [{"name": "f", "input_schema": TOOL["parameters"]}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 3},
    "thread": {"type": "create"},
    "stop_sequences": ["zz"],
    "stream": False,
}
COUNT = {name: value for name, value in MESSAGES.items() if name in {"system", "messages", "tools", "thinking"}}
NEARLY = {
    "chat/completions": CHAT,
    "chat/completions ": {
        "messages": CHAT["messages"][:2],
        "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
    },
    "completions": COMPLETION,
    "responses": RESPONSE,
    "responses ": {"input": "hello", "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}},
    "messages": MESSAGES,
    "messages ": {
        "messages": MESSAGES["messages"],
        "max_tokens": 9,
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    },
    "messages/count_tokens": COUNT,
}
DEEP = '{"a":' * 400 + "1" + "}" * 400
ODD_VALUES = (
    *(
        "null",
        "true",
        "false",
        "0",
        "-1",
        "1",
        "1.0",
        "1.5",
        "-0",
        "1e999",
        "1e-400",
        "1e308",
        "5e-324",
        "9" * 40,
        "9" * 5000,
    ),
    *(
        "9223372036854775807",
        "18446744073709551616",
        "4294967295",
        "NaN",
        "-Infinity",
        "01",
        "+1",
        ".5",
        "'x'",
        "tru",
        "",
        "\x07",
    ),
    *(
        '""',
        '"x"',
        '"\\ud800"',
        '"\\udfff\\ud800"',
        '"\\u0000"',
        '"\x07"',
        '"\\x"',
        '"\ufeff"',
        '"\u202e\u0301\U0010ffff"',
        '"\U0001f468\u200d"',
    ),
    *(
        '"function"',
        '"required"',
        '"<|im_end|>"',
        '"</tool_call><tool_call>"',
        '"{{ x }}"',
        '"areal:!"',
        '"' + "x" * 5000 + '"',
    ),
    *(
        "[]",
        "{}",
        "[null]",
        "[[]]",
        '[{}, "a"]',
        '{"a": 1, "a": 2}',
        '{"type": "text"}',
        '{"type": "function"}',
        "[1, 2.5, [3]]",
    ),
    *(
        '{"$ref": "#"}',
        '{"type": "string", "pattern": "(a+)+$"}',
        '{"pattern": "["}',
        '{"enum": []}',
        '{"minimum": 5, "maximum": 3}',
    ),
    *(
        '{"allOf": [{"type": "string"}, {"type": "integer"}]}',
        '{"$ref": "http://127.0.0.1:1/x"}',
        DEEP,
        "[" * 5000,
        "[" * 990 + "]" * 990,
    ),
)
HOLE = "@hole@"


def places(value, path=()):
    """Every place in a body but the body itself."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, held in inner:
        yield (*path, key)
        yield from places(held, (*path, key))


@st.composite
def nearly_right(draw, body):
    """The text of this body with one to three things wrong in it."""
    body = copy.deepcopy(body)
    odd = []
    for _ in range(draw(st.integers(1, 3))):
        *path, last = draw(st.sampled_from(list(places(body))))
        holder = body
        for key in path:
            holder = holder[key]
        match draw(st.sampled_from(["odd", "odd", "gone", "more", "other"])):
            case "odd":
                holder[last] = HOLE
                odd.append(draw(st.sampled_from(ODD_VALUES)))
            case "gone":
                del holder[last]
            case "more":
                holder = holder if isinstance(holder, dict) else body
                holder[
                    draw(st.sampled_from(["unheard_of", "type", "stream", "n", "echo", "thinking", "\ud800", ""]))
                ] = True
            case _:
                holder[last] = draw(
                    st.sampled_from([True, {"role": "user", "content": "x"}, [copy.deepcopy(body)], "x", 1])
                )
        if not body:
            break
    text = json.dumps(body)
    for value in odd:
        text = text.replace(json.dumps(HOLE), value, 1)
    return text.encode(errors="surrogatepass")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
BODIES = st.one_of(
    st.binary(max_size=200),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.sampled_from([json.dumps(body) for body in NEARLY.values()]).flatmap(
        lambda text: st.one_of(
            st.integers(0, len(text)).map(lambda end: text[:end].encode()),
            st.sampled_from(["utf-16", "utf-32", "utf-8-sig"]).map(text.encode),
            st.sampled_from(
                [text.encode() * 2, text.encode() + b"\0", b"\xff" + text.encode(), b" " * 10_000 + text.encode()]
            ),
        )
    ),
)
TYPES = (
    *(
        "application/json",
        "application/json; charset=utf-16",
        "text/plain",
        "text/html",
        "multipart/form-data; boundary=x",
        "x",
    ),
    *(
        "application/x-www-form-urlencoded",
        "application/octet-stream",
        "application/vnd.x+json",
        "",
        ";",
        "\xff/\xfe",
        "a/b; c=\xff",
    ),
)


@st.composite
def headers(draw):
    """Odd ones, of which several may come at once."""
    odd = {
        "Content-Type": st.sampled_from(TYPES),
        "Content-Encoding": st.sampled_from(["gzip", "deflate", "identity", "x", "br", "gzip, gzip"]),
        "Accept": st.sampled_from(["text/html", "application/msgpack", "\xff", "*/*;q=\xff"]),
        "Idempotency-Key": st.sampled_from(["a", "b", "\xff\xfe", "x" * 4000]),
        "Host": st.sampled_from(["", "x", "\xff", "[::1", "a:b:c", "x" * 300]),
        "Cookie": st.sampled_from(["\xff=;;", "a=b; a=c"]),
        "X-HTTP-Method-Override": st.just("DELETE"),
        "Range": st.just("bytes=9-1"),
        "If-Modified-Since": st.just("yesterday"),
        "anthropic-version": st.sampled_from(["1", "\xff"]),
    }
    chosen = draw(st.lists(st.sampled_from(sorted(odd)), max_size=2, unique=True))
    return {name: draw(odd[name]) for name in chosen}
