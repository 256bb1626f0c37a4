"""The dialects accept valid requests and refuse others; no body raises anything but a RequestError."""

from __future__ import annotations

import json

import pytest
from support.dialect_harness import CALL, CHAT_TOOL, MESSAGES, PIXEL, RESPONSES, SCHEMA, USER, called, turns

from areal_actors.core.errors import RequestError
from areal_actors.gateway.protocols import CHAT, dialect_of_path


def unchanged(dialect, **fields):
    return called(dialect, **fields) == called(dialect)


NEUTRAL_CHAT = {
    "user": "me",
    "metadata": {"a": "b"},
    "store": True,
    "service_tier": "auto",
    "prompt_cache_key": "k",
    "safety_identifier": "s",
    "verbosity": "low",
    "prediction": None,
    "audio": None,
    "modalities": ["text"],
    "parallel_tool_calls": True,
    "logit_bias": None,
    "functions": [],
    "tools": [],
    "tool_choice": "auto",
    "response_format": {"type": "text"},
    "stop_token_ids": [],
    "repetition_penalty": 1.0,
    "n": 1,
    "logprobs": False,
    "top_logprobs": 0,
    "stream": False,
    "stop": [],
}
NEUTRAL_RESPONSES = {
    "store": True,
    "truncation": "auto",
    "include": ["web_search_call.results"],
    "background": False,
    "conversation": None,
    "service_tier": "flex",
    "max_tool_calls": 3,
    "reasoning": {"summary": "auto"},
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "parallel_tool_calls": True,
}
NEUTRAL_MESSAGES = {
    "metadata": {"user_id": "u"},
    "service_tier": "auto",
    "cache_control": {"type": "ephemeral"},
    "thread": {"type": "create"},
    "thinking": {"type": "adaptive"},
    "mcp_servers": [],
    "container": None,
    "diagnostics": {"previous_message_id": None},
}


@pytest.mark.parametrize(
    ("dialect", "field", "value"),
    [
        (dialect, field, value)
        for dialect, fields in ((CHAT, NEUTRAL_CHAT), (RESPONSES, NEUTRAL_RESPONSES), (MESSAGES, NEUTRAL_MESSAGES))
        for field, value in fields.items()
    ],
)
def test_what_clients_send_without_meaning_changes_nothing(dialect, field, value):
    assert unchanged(dialect, **{field: value})


def test_sampling_is_what_the_request_states():
    fields = {
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.1,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "seed": -3,
    }
    call = called(CHAT, **fields, logit_bias={"17": -100}, stop="END", max_completion_tokens=10**12, n=3)
    assert call.sampling == fields | {"logit_bias": {17: -100.0}, "stop": ("END",), "max_tokens": 10**12}
    assert (call.choices, called(CHAT).sampling, called(CHAT, top_k=-1).sampling) == (3, {}, {"top_k": 0})
    assert called(RESPONSES, max_output_tokens=5, temperature=0.5).sampling == {"max_tokens": 5, "temperature": 0.5}
    assert called(MESSAGES, stop_sequences=["a"], top_k=3).sampling == {"max_tokens": 9, "stop": ("a",), "top_k": 3}


@pytest.mark.parametrize(
    ("fields", "choice"),
    [
        ({}, "auto"),
        ({"tool_choice": None}, "auto"),
        ({"tool_choice": "none"}, "none"),
        ({"tool_choice": "required"}, "required"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "function:f"),
    ],
)
def test_a_tool_choice_is_translated(fields, choice):
    call = called(
        CHAT,
        tools=[CHAT_TOOL | {"function": CHAT_TOOL["function"] | {"strict": True}}],
        parallel_tool_calls=False,
        **fields,
    )
    assert (call.tool_choice, call.tools, call.parallel_tool_calls) == (choice, (CHAT_TOOL,), False)


def test_the_dialects_translate_equal_tools_equally():
    flat = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}
    theirs = {"name": "f", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}
    asked = called(RESPONSES, tools=[flat], tool_choice={"type": "function", "name": "f"})
    other = called(
        MESSAGES, tools=[theirs], tool_choice={"type": "tool", "name": "f", "disable_parallel_tool_use": True}
    )
    assert asked.tools == other.tools == called(CHAT, tools=[CHAT_TOOL]).tools
    assert asked.tool_choice == other.tool_choice == "function:f"
    assert (asked.parallel_tool_calls, other.parallel_tool_calls) == (True, False)


def test_answer_formats_become_constraints():
    some_json = called(CHAT, response_format={"type": "json_object"}).constraint
    schema = called(
        CHAT, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    ).constraint
    assert json.loads(some_json.text) == {"type": "object"}
    assert json.loads(schema.text) == SCHEMA
    assert (
        called(RESPONSES, text={"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}).constraint == schema
    )
    assert called(MESSAGES, output_config={"format": {"type": "json_schema", "schema": SCHEMA}}).constraint == schema
    assert called(MESSAGES, output_format={"type": "json_schema", "schema": SCHEMA}).constraint == schema


def test_effort_and_template_settings_go_to_the_template():
    assert called(CHAT, reasoning_effort="low").template_kwargs == {"reasoning_effort": "low"}
    assert called(RESPONSES, reasoning={"effort": "none"}).template_kwargs == {"enable_thinking": False}
    stated = called(MESSAGES, thinking={"type": "disabled"}, chat_template_kwargs={"enable_thinking": True, "x": 1})
    assert stated.template_kwargs == {"enable_thinking": True, "x": 1}


def test_chat_messages_become_ours():
    call = called(
        CHAT,
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "See"},
                    {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
                ],
            },
            {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "reasoning": "hm",
                "tool_calls": [CALL],
                "annotations": [],
            },
            {"role": "tool", "content": None, "tool_call_id": "c1", "name": "f"},
            {"role": "user", "content": "and?", "name": "ann"},
        ],
    )
    assert call.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "See"}, {"type": "image", "url": PIXEL}]},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [CALL]},
        {"role": "tool", "content": "", "name": "f", "tool_call_id": "c1"},
        {"role": "user", "content": "and?", "name": "ann"},
    )


def test_a_tool_call_id_may_come_again_once_it_is_answered():
    assistant, tool = (
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "content": "4", "tool_call_id": "c1"},
    )
    assert len(called(CHAT, **turns(assistant, tool, assistant, tool)).messages) == 5
    with pytest.raises(RequestError, match=r"messages\[3\]\.tool_call_id"):
        called(CHAT, **turns(assistant, tool, tool))


def item(kind, **fields):
    return {"type": kind, **fields}


def test_items_of_one_turn_are_one_message_and_turns_stay_apart():
    one = item("function_call", call_id="a", name="f", arguments="{}", id="fc_a", status="completed")
    two = item("function_call", call_id="b", name="f", arguments="{}")
    thought = item("reasoning", id="rs", summary=[], content=[{"type": "reasoning_text", "text": "hm"}])
    text = item(
        "message",
        role="assistant",
        id="msg",
        status="completed",
        content=[{"type": "output_text", "text": "so", "annotations": []}],
    )
    outputs = [
        item("function_call_output", call_id=call, output=[{"type": "input_text", "text": "4"}]) for call in "ab"
    ]
    call = called(
        RESPONSES,
        input=[{"role": "user", "content": "?"}, thought, one, two, text, *outputs, text, text, thought, text],
    )
    calls = [{"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in "ab"]
    assert call.messages == (
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "so", "reasoning_content": "hm", "tool_calls": calls},
        {"role": "tool", "content": "4", "tool_call_id": "a"},
        {"role": "tool", "content": "4", "tool_call_id": "b"},
        {"role": "assistant", "content": "so"},
        {"role": "assistant", "content": "so"},
        {"role": "assistant", "content": "so", "reasoning_content": "hm"},
    )


def test_images_of_every_dialect_are_the_same_part():
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    expected = ({"role": "user", "content": [{"type": "image", "url": PIXEL}]},)
    assert (
        called(CHAT, messages=[{"role": "user", "content": [item("image_url", image_url={"url": PIXEL})]}]).messages
        == expected
    )
    assert (
        called(
            RESPONSES, input=[{"role": "user", "content": [item("input_image", image_url=PIXEL, detail="auto")]}]
        ).messages
        == expected
    )
    assert called(MESSAGES, messages=[{"role": "user", "content": [item("image", source=source)]}]).messages == expected


def test_the_blocks_of_a_user_turn_keep_their_order():
    use = item("tool_use", id="c1", name="f", input={"x": 1})
    blocks = [
        item("text", text="a"),
        item("tool_result", tool_use_id="c1", content=None, is_error=True),
        item("text", text="b"),
    ]
    system = [item("text", text="Be ", cache_control={"type": "ephemeral"}), item("text", text="brief.")]
    call = called(
        MESSAGES,
        system=system,
        messages=[USER, {"role": "assistant", "content": [use]}, {"role": "user", "content": blocks}],
    )
    assert [(message["role"], message["content"]) for message in call.messages] == [
        ("system", "Be brief."),
        ("user", "hi"),
        ("assistant", ""),
        ("user", "a"),
        ("tool", "Error: "),
        ("user", "b"),
    ]


def test_an_error_has_the_shape_of_its_dialect_and_names_the_field_as_the_client_knows_it():
    assert CHAT.error("no", 400, "n")["error"] == {
        "message": "no",
        "type": "invalid_request_error",
        "param": "n",
        "code": None,
    }
    assert RESPONSES.error("no", 400, "max_tokens")["error"]["param"] == "max_output_tokens"
    assert RESPONSES.error("no", 400, "continues")["error"]["code"] == "previous_response_not_found"
    assert MESSAGES.error("no", 429) == {"type": "error", "error": {"type": "rate_limit_error", "message": "no"}}
    assert [dialect_of_path(path).name for path in ("/s/v1/messages/batches", "/v1/responses", "/nowhere")] == [
        "messages",
        "responses",
        CHAT.name,
    ]
