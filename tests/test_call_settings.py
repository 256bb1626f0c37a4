"""Settings that a call sends to the engine: sampling, and grammars that the real llguidance follows."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
from support.answer_samples import format_by_name
from support.framework_harness import chat_tokenizer

from areal_actors.core.errors import EngineError, RequestError
from areal_actors.core.values import Constraint, SamplingParams
from areal_actors.embedded.constraints import Grammars
from areal_actors.gateway.completion import callable_tools, sampling_of, within_context
from areal_actors.gateway.constraint import constraint_of
from areal_actors.messages import ModelRequest
from areal_actors.tokenization.tool_parsers.families import FORMATS
from areal_actors.tokenization.tool_parsers.syntax import THINK

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
ADD, TAKE = (
    {"type": "function", "function": {"name": name, "description": "", "parameters": SCHEMA}}
    for name in ("add", "take")
)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
DEFAULT = SamplingParams(temperature=0.8, max_tokens=50)
ALIKE = {"llama3", "generic_json"}
"""Formats in which a call begins as JSON does."""


@cache
def grammars():
    chat = chat_tokenizer()
    return Grammars(chat, chat.vocabulary_size)


def allows(constraint, text):
    """True if a completion may be this text and nothing more."""
    matcher = grammars().matcher(constraint)
    try:
        matcher.accept_tokens(chat_tokenizer().encode(text))
    except (EngineError, RequestError):
        return False
    return bool(matcher.allowed_mask()[list(chat_tokenizer().stop_ids)].any())


def asked(schema=SCHEMA, **fields):
    constraint = None if schema is None else Constraint(kind="json_schema", text=json.dumps(schema))
    return ModelRequest(session="s", constraint=constraint, **fields)


def constraint(request, name="hermes", *, in_reasoning=False):
    return constraint_of(request, callable_tools(request), format_by_name(name, THINK), in_reasoning=in_reasoning)


def test_without_tools_or_reasoning_the_schema_goes_to_the_engine_as_it_is():
    request = asked()
    assert constraint(request) is request.constraint
    assert constraint(asked(None, tools=(ADD,))) is None


@pytest.mark.parametrize("name", FORMATS)
def test_reasoning_that_the_prompt_has_opened_is_closed_before_the_json_and_nothing_else_is_allowed(name):
    obeyed = constraint(asked(), name, in_reasoning=True)
    for text in (
        'x</think>\n\n{"a": 1}',
        'x < y\n\n z</think>\n{"a":1}',
        '</think>{"a": 1}',
        'x</think>\n\n{\n  "a": 1\n}',
    ):
        assert allows(obeyed, text), text
    for text in (
        '{"a": 1}',
        "x</think>",
        "",
        'x</think>{"b": 1}',
        'x</think>\n\n{"a": 1} ok',
        'x</think>y</think>{"a": 1}',
        'x</think>\n\n\n\n\n{"a": 1}',
        'x</think>{"a":' + " " * 99 + "1}",
    ):
        assert not allows(obeyed, text), text


def test_what_is_sampled_at_random_under_it_ends_and_obeys():
    obeyed, chat, dice = constraint(asked(), in_reasoning=True), chat_tokenizer(), np.random.default_rng(0)
    for _ in range(5):
        matcher, ids = grammars().matcher(obeyed), chat.encode("I think</think>").copy()
        matcher.accept_tokens(ids)
        while len(ids) < 300:
            token = int(dice.choice(np.flatnonzero(matcher.allowed_mask())))
            if token in chat.stop_ids:
                break
            matcher.accept_tokens([token])
            ids.append(token)
        assert list(json.loads(chat.decode(ids).partition("</think>")[2])) == ["a"]


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - ALIKE - {"none"}))
def test_with_tools_the_answer_is_a_call_or_such_json(name):
    either, forced = (
        constraint(asked(tools=(ADD,)), name),
        constraint(asked(None, tools=(ADD,), tool_choice="required"), name),
    )
    for text in ('{"a": 1}', '{\n  "a": 1\n}'):
        assert allows(either, text)
        assert not allows(forced, text)
    for text in ("", "Hello", '{"b": 1}', '{"a": 1}{"a": 1}', '{"a":' + " " * 99 + "1}"):
        assert not allows(either, text), text
    if name == "hermes":
        assert allows(either, CALL)
        assert allows(forced, CALL)
        assert not allows(either, CALL + '{"a": 1}')


@pytest.mark.parametrize(
    ("name", "in_reasoning", "kind", "field"),
    [
        *[(name, False, "json_schema", "response_format") for name in sorted(ALIKE)],
        ("hermes", True, "json_schema", "response_format"),
        ("hermes", False, "regex", "response_format"),
        ("none", False, "json_schema", "tools"),
    ],
)
def test_where_json_and_tools_cannot_be_had_together_the_field_is_named(name, in_reasoning, kind, field):
    request = ModelRequest(session="s", tools=(ADD,), constraint=Constraint(kind=kind, text=json.dumps(SCHEMA)))
    with pytest.raises(RequestError) as refused:
        constraint(request, name, in_reasoning=in_reasoning)
    assert refused.value.field == field


def test_a_named_function_is_the_only_one_that_may_be_called():
    request = asked(None, tools=(ADD, TAKE), tool_choice="function:take")
    assert callable_tools(request) == [TAKE]
    assert allows(constraint(request), CALL.replace("add", "take"))
    assert not allows(constraint(request), CALL)


@pytest.mark.parametrize("parallel", [True, False])
def test_several_calls_are_forced_only_where_they_may_be_parallel(parallel):
    several = constraint(asked(None, tools=(ADD, TAKE), tool_choice="required", parallel_tool_calls=parallel))
    assert allows(several, CALL)
    assert allows(several, CALL + "\n" + CALL.replace("add", "take")) is parallel


def test_no_tool_may_be_called_when_none_is_chosen():
    assert callable_tools(asked(tools=(ADD,), tool_choice="none")) == ()
    assert constraint(request := asked(tools=(ADD,), tool_choice="none")) is request.constraint


@pytest.mark.parametrize(("tools", "choice"), [((), "required"), ((), "function:add"), ((ADD,), "function:take")])
def test_a_choice_of_a_tool_that_is_not_there_is_refused(tools, choice):
    with pytest.raises(RequestError, match="'tool_choice'") as refused:
        callable_tools(asked(None, tools=tools, tool_choice=choice))
    assert refused.value.field == "tool_choice"


def test_what_a_request_states_holds_and_the_session_s_own_for_the_rest():
    assert sampling_of({}, DEFAULT) is DEFAULT
    stated = {
        "logit_bias": {7: -100.0},
        "stop": ["x"],
        "seed": -5,
        "top_k": 3,
        "temperature": 0.8,
        "top_logprobs": 2,
        "max_tokens": 9,
    }
    sampling = sampling_of(stated, DEFAULT)
    assert (sampling.logit_bias, sampling.stop, sampling.seed, sampling.temperature) == ({7: -100.0}, ("x",), -5, 0.8)
    assert (sampling.top_k, sampling.top_logprobs, sampling.max_tokens, sampling.top_p) == (3, 2, 9, 1.0)


@pytest.mark.parametrize(
    ("stated", "field"),
    [
        ({"top_p": 0.0}, "top_p"),
        ({"logit_bias": {1: "x"}}, "logit_bias"),
        ({"stop": [1]}, "stop"),
        ({"presence_penalty": 3}, "presence_penalty"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(stated, field):
    with pytest.raises(RequestError) as refused:
        sampling_of(stated, DEFAULT)
    assert refused.value.field == field


def test_the_length_is_cut_to_what_the_context_leaves_and_a_prompt_that_leaves_nothing_refused():
    assert within_context(DEFAULT, 10, 100) is DEFAULT
    assert within_context(DEFAULT, 99, 100).max_tokens == 1
    with pytest.raises(
        RequestError, match=r"^prompt is too long: 100 tokens > 100 maximum; .* 100 tokens: shorten 'prompt'"
    ) as refused:
        within_context(DEFAULT, 100, 100, "prompt")
    assert refused.value.field == "prompt"
