from __future__ import annotations

import pytest

from areal_actors.dialects import chat
from areal_actors.errors import RequestError

HELLO = [{"role": "user", "content": "hello"}]


def parsed(**fields):
    return chat.parse({"model": "m", "messages": HELLO, **fields})


def test_messages_become_role_and_text():
    messages, options = parsed(
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "bob"},
            {"role": "assistant", "content": None},
            {"role": "assistant", "refusal": None, "tool_calls": []},
        ]
    )
    assert messages == (
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": ""},
    )
    assert options == {}


@pytest.mark.parametrize(
    ("stated", "options"),
    [
        ({"temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 3}, {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 3}),
        ({"max_tokens": 7}, {"max_tokens": 7}),
        ({"max_completion_tokens": 7, "max_tokens": None}, {"max_tokens": 7}),
        ({"stop": "x"}, {"stop": ["x"]}),
        ({"stop": ["x", "yy"]}, {"stop": ["x", "yy"]}),
        ({"temperature": None, "stop": None, "seed": None, "n": None, "stream": None}, {}),
    ],
)
def test_stated_sampling_parameters_are_options(stated, options):
    assert parsed(**stated)[1] == options


@pytest.mark.parametrize(
    "neutral",
    [
        {"n": 1},
        {"logprobs": False},
        {"tools": []},
        {"tool_choice": "auto"},
        {"parallel_tool_calls": True},
        {"response_format": {"type": "text"}},
        {"frequency_penalty": 0},
        {"presence_penalty": 0.0},
        {"logit_bias": {}},
        {"store": True},
        {"user": "bob", "metadata": {"a": "b"}},
        {"stream": False, "stream_options": None},
        {"whatever": None},
    ],
)
def test_a_field_that_asks_for_what_happens_anyway_is_accepted(neutral):
    assert parsed(**neutral)[1] == {}


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"frequency_penalty": 0.1}, "frequency_penalty"),
        ({"temprature": 1}, "temprature"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_completion_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream_options": "usage"}, "stream_options"),
        ({"stop": 5}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a", 5]}, "stop"),
        ({"stop": {"a": 1}}, "stop"),
        ({"seed": 10**30}, "seed"),
        ({"max_tokens": -(10**30)}, "max_tokens"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": [*HELLO, {"content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages[0].tool_calls"),
    ],
)
def test_what_is_wrong_or_cannot_be_honoured_is_refused_by_name(wrong, field):
    with pytest.raises(RequestError) as caught:
        parsed(**wrong)
    assert caught.value.field == field
    assert field in str(caught.value)


def test_a_body_that_is_no_object_is_refused():
    with pytest.raises(RequestError, match="must be a JSON object"):
        chat.parse([1])


@pytest.mark.parametrize(
    ("body", "wanted"),
    [({}, False), ({"stream_options": None}, False), ({"stream_options": {}}, False), ({"stream_options": {"include_usage": True}}, True)],
)
def test_usage_is_streamed_when_it_is_asked_for(body, wanted):
    assert chat.wants_usage(body) is wanted


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (401, "authentication_error"), (404, "not_found_error"), (410, "session_over"), (503, "server_error")],
)
def test_errors_have_openai_s_shape(status, kind):
    body = chat.error("no", status, "field" if status == 400 else "")
    assert body == {"error": {"message": "no", "type": kind, "param": "field" if status == 400 else None, "code": None}}
