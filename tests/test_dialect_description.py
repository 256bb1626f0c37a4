"""The description of requests, and random bodies: none raises anything but a RequestError."""

from __future__ import annotations

import json

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.dialect_harness import LEAST

from areal_actors.core.errors import RequestError
from areal_actors.gateway.protocols import DIALECTS
from areal_actors.gateway.protocols.lenient import accept
from areal_actors.gateway.protocols.openapi import Endpoint, openapi
from areal_actors.messages import ModelRequest

KEYS = sorted(
    {name for dialect in DIALECTS for name in dialect.request_type.__struct_fields__}
    | {"role", "content", "type", "text", "id", "call_id", "name", "input", "output"}
)


WORDS = st.sampled_from(
    [
        "user",
        "assistant",
        "tool",
        "message",
        "text",
        "function_call",
        "reasoning",
        "auto",
        "function",
        "json_schema",
        "tool_use",
        "",
    ]
)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | WORDS
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


MESSAGE = st.fixed_dictionaries(
    {}, optional={"role": WORDS, "type": WORDS, "content": JSON, "tool_calls": JSON, "tool_call_id": WORDS}
)


@given(
    st.sampled_from(DIALECTS), st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4), st.lists(MESSAGE, max_size=3)
)
def test_no_object_raises_anything_but_a_request_error(dialect, fields, messages):
    least = LEAST[dialect.name]
    for body in (
        fields,
        least | fields,
        least | fields | {"messages": messages},
        least | {"input": messages},
        least | {"messages": messages},
    ):
        try:
            call = dialect.call(dialect.decode(json.dumps(body).encode()), "s")
        except RequestError:
            continue
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(call), type=ModelRequest) is not None


def test_the_description_holds_every_endpoint_and_every_reference():
    class SetRewardBody(msgspec.Struct):
        reward: float
        interaction_id: str | None = None

    described = openapi(
        "1.2", [Endpoint(method="post", path="/rl/set_reward", summary="Note a reward", request=SetRewardBody)]
    )
    text = json.dumps(described)
    assert {f"/v1/{dialect.path}" for dialect in DIALECTS} | {"/v1/models", "/rl/set_reward"} == described[
        "paths"
    ].keys()
    references = {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert references == described["components"]["schemas"].keys()
    assert "text/event-stream" in described["paths"]["/v1/messages"]["post"]["responses"]["200"]["content"]
    assert (
        "text/event-stream"
        not in described["paths"]["/v1/messages/count_tokens"]["post"]["responses"]["200"]["content"]
    )


@pytest.mark.parametrize("unknown_fields", ["list", "refuse"])
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_body_that_the_description_allows_is_decoded_and_one_that_it_forbids_is_not(dialect, unknown_fields):
    described = openapi("1.2", unknown_fields=unknown_fields)
    schema = described["paths"][f"/v1/{dialect.path}"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    validator = jsonschema.Draft202012Validator({**schema, "components": described["components"]})
    least = LEAST[dialect.name]

    def is_taken(body):
        try:
            if unknown_fields == "list":
                accept(dialect, json.dumps(body).encode(), "s")
            else:
                dialect.call(dialect.decode(json.dumps(body).encode()), "s")
        except RequestError:
            return False
        return True

    bodies = [
        least,
        {},
        least | {"frobnicate": 1},
        least | {"min_tokens": 5},
        least | {"min_tokens": 0},
        least | {"n": "x"},
    ]
    if dialect.name in ("chat_completions", "messages", "count_tokens"):
        for content in (
            [{"type": "mystery"}, {"type": "text", "text": "t"}],
            [{"type": "video"}],
            [{"type": "text", "text": "t", "x": 1}],
        ):
            bodies += [least | {"messages": [{"role": "user", "content": content}]}]
        bodies += [least | {"messages": [{"role": "user", "content": "t", "partial": flag}]} for flag in (True, False)]
    if dialect.name == "chat_completions":
        bodies += [
            least | {"tools": [{"type": "web_search"}]},
            least | {"tools": [{"type": "custom", "custom": {"name": "x", "y": 1}}]},
        ]
    assert [validator.is_valid(body) for body in bodies] == [is_taken(body) for body in bodies]
    assert validator.is_valid(least | {"frobnicate": 1}) is (unknown_fields == "list")
