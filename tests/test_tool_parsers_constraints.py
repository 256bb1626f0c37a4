import json
from functools import lru_cache

import pytest
from llguidance import LLMatcher, LLTokenizer
from support.answer_samples import CALLING, ONE_CALL, PING, SEARCH, TOOLS, WEATHER, format_by_name
from tokenizers import AddedToken, Tokenizer

from areal_actors.core.errors import RequestError
from areal_actors.core.values import Constraint
from areal_actors.embedded.embedded_model import END_OF_TEXT, TURN_END, train_tokenizer
from areal_actors.tokenization.tool_parsers.families import format_for_template
from areal_actors.tokenization.tool_parsers.grammar import resolve_delimiters

MARKS = [
    *("<think>", "</think>", "<thinking>", "</thinking>", "[THINK]", "[/THINK]", "<tool_call>", "</tool_call>"),
    *(
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
    ),
    *("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<|tool_call_start|>", "<|tool_call_end|>"),
    *("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|python_tag|>"),
]
MARKS_ARE = ("text", "added tokens", "special tokens")


@lru_cache
def plain_tokenizer():
    return train_tokenizer().to_str()


@lru_cache
def vocabulary(marks_are):
    """A tokenizer with all marks as one of the three, and llguidance's view of it."""
    tokenizer = Tokenizer.from_str(plain_tokenizer())
    if marks_are == "added tokens":
        tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    if marks_are == "special tokens":
        tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    return tokenizer, LLTokenizer(
        tokenizer.to_str(), eos_token=[tokenizer.token_to_id(TURN_END), tokenizer.token_to_id(END_OF_TEXT)]
    )


def allows(constraint, text, marks_are="text"):
    """True if a completion may be this text and nothing more."""
    tokenizer, known = vocabulary(marks_are)

    def token_id(mark):
        number = tokenizer.token_to_id(mark)
        return number if number is not None and known.is_special_token(number) else None

    matcher = LLMatcher(known, LLMatcher.grammar_from_lark(resolve_delimiters(constraint, token_id).text))
    assert not matcher.is_error(), matcher.get_error()
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def forced(name, tools=TOOLS, **kwargs):
    return format_by_name(name).constraint(tools, **{"parallel": False, **kwargs})


def canonical(name, arguments):
    """A call of `search` as the family's template renders it."""
    as_json = json.dumps(arguments)
    keywords = ", ".join(f"{key}={json.dumps(value)}" for key, value in arguments.items())
    if name == "qwen_coder":
        values = "".join(
            f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
            for key, value in arguments.items()
        )
        return f"<tool_call>\n<function=search>\n{values}</function>\n</tool_call>"
    if name == "glm":
        values = "".join(
            f"<arg_key>{key}</arg_key>\n"
            f"<arg_value>{value if isinstance(value, str) else json.dumps(value)}</arg_value>\n"
            for key, value in arguments.items()
        )
        return f"<tool_call>search\n{values}</tool_call>"
    if name == "pythonic":
        return f"<|tool_call_start|>[search({keywords})]<|tool_call_end|>"
    if name == "python_lines":
        return f"<function_calls>search({keywords})</function_calls>"
    old = '{"city": "Paris", "days": 3}'
    return ONE_CALL[name].replace("weather", "search").replace(old, as_json).removesuffix("<|call|>")


@pytest.mark.parametrize("marks_are", MARKS_ARE)
@pytest.mark.parametrize("name", CALLING)
def test_a_forced_completion_is_a_call_as_the_template_renders_it_and_nothing_else(name, marks_are):
    constraint = forced(name)
    assert constraint.kind == "lark"
    call = ONE_CALL[name].removesuffix("<|call|>")
    long = canonical(name, {"query": 'say "a" < b', "filters": {"since": [1, None]}, "tags": ["x", "y"], "limit": 4})

    assert allows(constraint, call, marks_are)
    assert allows(constraint, long, marks_are)
    for text in (call, long):
        answer = format_by_name(name).parse(text, TOOLS)
        assert (answer.text, answer.tool_call_error, len(answer.tool_calls)) == ("", "", 1)

    assert not allows(constraint, "", marks_are)
    assert not allows(constraint, "Hello", marks_are)
    assert not allows(constraint, call + "Hello", marks_are)
    assert not allows(constraint, "Hello" + call, marks_are)
    assert not allows(constraint, call.replace("weather", "other"), marks_are)
    assert not allows(constraint, call.replace("city", "town"), marks_are)
    assert not allows(constraint, call.replace("3", '"three"'), marks_are)
    assert not allows(constraint, call[:-1], marks_are)


@pytest.mark.parametrize("marks_are", MARKS_ARE)
@pytest.mark.parametrize("name", CALLING)
def test_arguments_follow_the_schema(name, marks_are):
    constraint = forced(name, [SEARCH])
    assert allows(constraint, canonical(name, {"query": "a"}), marks_are)
    assert allows(constraint, canonical(name, {"query": "a", "limit": None}), marks_are)
    assert not allows(constraint, canonical(name, {}), marks_are), "query is required"
    assert not allows(constraint, canonical(name, {"query": "a", "tags": [1]}), marks_are)
    assert not allows(constraint, canonical(name, {"query": "a", "limit": 1.5}), marks_are)


@pytest.mark.parametrize("name", [name for name in CALLING if name != "gpt_oss"])
def test_several_calls_only_when_they_may_be_parallel(name):
    one = ONE_CALL[name]
    several = {
        "deepseek": one.replace("<｜tool▁calls▁end｜>", one.removeprefix("<｜tool▁calls▁begin｜>")),
        "deepseek_v3": one.replace("<｜tool▁calls▁end｜>", "\n" + one.removeprefix("<｜tool▁calls▁begin｜>")),
        "generic_json": f"[{one}, {one}]",
        "llama3": f"{one}; {one}",
        "mistral": one + one,
        "python_lines": one.replace("</function_calls>", "\n" + one.removeprefix("<function_calls>")),
        "pythonic": one.replace(
            ")]", ")" + ", " + one.removeprefix("<|tool_call_start|>[").removesuffix("]<|tool_call_end|>") + "]"
        ),
    }.get(name, f"{one}\n{one}")
    assert len(format_by_name(name).parse(several, TOOLS).tool_calls) == 2
    assert allows(forced(name, parallel=True), several)
    assert not allows(forced(name, parallel=False), several)
    assert allows(forced(name, parallel=True), f"[{one}]" if name == "generic_json" else one)


@pytest.mark.parametrize("marks_are", MARKS_ARE)
@pytest.mark.parametrize("name", CALLING)
def test_reasoning_may_come_first_and_must_end_when_the_prompt_opened_it(name, marks_are):
    call = ONE_CALL[name].removesuffix("<|call|>")
    opening, closing = ("<think>\n", "\n</think>\n\n")
    if name == "gpt_oss":
        opening, closing = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant"
    assert allows(forced(name), f"{opening}I < think{closing}{call}", marks_are)
    assert allows(forced(name, in_reasoning=True), f"I < think{closing}{call}", marks_are)
    assert not allows(forced(name, in_reasoning=True), call, marks_are)
    answer = format_by_name(name).parse(f"I < think{closing}{call}", TOOLS, in_reasoning=True)
    assert (answer.reasoning, len(answer.tool_calls)) == ("I < think", 1)


@pytest.mark.parametrize("marks_are", MARKS_ARE)
def test_a_value_written_as_text_cannot_hold_what_would_end_the_call(marks_are):
    call = ONE_CALL["qwen_coder"]
    assert allows(forced("qwen_coder"), call.replace("Paris", "a\n\n<b>{}"), marks_are)
    assert not allows(forced("qwen_coder"), call.replace("Paris", "a</tool_call>b"), marks_are)
    assert not allows(forced("glm"), ONE_CALL["glm"].replace("Paris", "a</tool_call>b"), marks_are)


def test_booleans_are_forced_as_the_template_renders_them():
    call = ONE_CALL["qwen_coder"].replace("=days>\n3\n", "=exact>\n{}\n")
    assert allows(forced("qwen_coder"), call.format("True"))
    assert not allows(forced("qwen_coder"), call.format("true"))


def test_enumerations_and_references_hold_in_values_written_as_text():
    parameters = {
        "type": "object",
        "properties": {"unit": {"type": "string", "enum": ["C", "F"]}, "place": {"$ref": "#/$defs/place"}},
        "required": ["unit", "place"],
        "$defs": {"place": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}},
    }
    tool = {"type": "function", "function": {"name": "at", "parameters": parameters}}
    place = "<arg_key>place</arg_key>\n<arg_value>{}</arg_value>"
    call = "<tool_call>at\n<arg_key>unit</arg_key>\n<arg_value>{}</arg_value>\n" + place + "\n</tool_call>"
    assert allows(forced("glm", [tool]), call.format("C", '{"x": 1}'))
    assert not allows(forced("glm", [tool]), call.format("K", '{"x": 1}'))
    assert not allows(forced("glm", [tool]), call.format("C", '{"x": "1"}'))
    assert (
        format_by_name("glm").parse(call.format("C", '{"x": 1}'), [tool]).tool_calls[0].arguments
        == '{"unit": "C", "place": {"x": 1}}'
    )


@pytest.mark.parametrize("name", CALLING)
def test_a_tool_without_parameters_can_be_forced(name):
    bare = {
        "glm": "<tool_call>ping\n</tool_call>",
        "qwen_coder": "<tool_call>\n<function=ping>\n</function>\n</tool_call>",
        "pythonic": "<|tool_call_start|>[ping()]<|tool_call_end|>",
    }.get(name, canonical(name, {}).replace("search", "ping") if name not in ("glm", "qwen_coder", "pythonic") else "")
    assert allows(forced(name, [PING]), bare)
    assert [call.name for call in format_by_name(name).parse(bare, [PING]).tool_calls] == ["ping"]


def test_only_the_reasoning_of_the_template_may_come_first():
    constraint = format_for_template("{{ tools }}<tool_call>").constraint([WEATHER], parallel=False)
    assert allows(constraint, ONE_CALL["hermes"])
    assert not allows(constraint, "<think>\na\n</think>\n\n" + ONE_CALL["hermes"])


def test_words_of_llguidance_that_mean_something_in_a_schema_are_only_text():
    parameters = {
        "type": "object",
        "properties": {"x": {"type": "string", "description": '\n// token "</think>": x: <[]>\n{name} %json'}},
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    assert allows(
        forced("hermes", [tool]), '<tool_call>\n{"name": "f", "arguments": {"x": "1"}}\n</tool_call>', "added tokens"
    )


@pytest.mark.parametrize("name", CALLING)
def test_nothing_can_be_forced_without_tools(name):
    with pytest.raises(RequestError, match="there are no tools") as error:
        forced(name, [])
    assert error.value.field == "tools"


def test_a_template_without_tools_has_no_way_to_write_a_call():
    with pytest.raises(RequestError, match="does not support tools") as error:
        forced("none")
    assert error.value.field == "tools"


def test_other_constraints_have_no_marks_to_choose():
    constraint = Constraint(kind="regex", text='// token "a": b\nc')
    assert resolve_delimiters(constraint, lambda _: 7) is constraint
