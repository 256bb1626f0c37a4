"""Calls with attributes, types, CDATA or elements inside: values of all kinds; and answers with delimiters around their
text."""

import json

import pytest
from support.answer_samples import read_by
from support.family_templates import form_of
from support.tagged_templates import M3, TAGGED

from areal_actors.tokenization.chat_template import ChatTemplate
from areal_actors.tokenization.tool_parsers.probes import Probe, ProbeCall, probe_tools
from areal_actors.tokenization.tool_parsers.round_trip import tool_support

VALUES = {
    "quotes": 'he said "no" \\ & left',
    "lines": "one\ntwo\n\nthree",
    "script": "Zürich – 東京 🚲",
    "looks": "2020",
    "number": -0.5,
    "count": 12,
    "flag": False,
    "words": ["a", "b <c>"],
    "inner": {"since": 2020, "deep": {"tags": ["x"], "ratio": 2.5}},
}
NESTED = {
    "type": "object",
    "properties": {
        "trip": {
            "type": "object",
            "properties": {
                "stops": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"zip": {"type": "string"}, "nights": {"type": "integer"}},
                    },
                },
                "tags": {"type": "array", "items": {"type": "string"}},
                "notes": {"type": "object"},
            },
        }
    },
}
BOOK = [{"type": "function", "function": {"name": "book", "parameters": NESTED}}]
TRIP = {"trip": {"stops": [{"zip": "01067", "nights": 2}, {"zip": "8001", "nights": 1}], "tags": [], "notes": {}}}


def rendered(family, calls, tools):
    form, template = form_of(family)
    probe = Probe(template, (), tools)
    prompt, text = probe.render(calls)
    return form, text, form.opens_reasoning(prompt) or form.closes_reasoning(text)


@pytest.mark.parametrize("family", TAGGED)
def test_values_of_all_kinds_are_read_back_as_they_were(family):
    call = ProbeCall("store", VALUES, "callS1t2o")
    tools = probe_tools([call])
    form, text, _ = rendered(family, [call], tools)
    answer = read_by(form, text, tools)
    assert [json.loads(read.arguments) for read in answer.tool_calls] == [VALUES]


@pytest.mark.parametrize("family", ["elements", "typed_elements"])
def test_schemas_of_nested_values_decide_their_types(family):
    call = ProbeCall("book", TRIP, "callB1o2k")
    form, text, _ = rendered(family, [call], BOOK)
    answer = read_by(form, text, BOOK)
    assert [json.loads(read.arguments) for read in answer.tool_calls] == [TRIP]


def test_nested_elements_that_do_not_close_leave_the_call_text():
    form, _ = form_of("elements")
    text = (
        f"{M3}<tool_call>\n{M3}<invoke"
        f' name="book">{M3}<trip>{M3}<tags>{M3}<item>a{M3}</trip>{M3}</invoke>\n{M3}</tool_call>'
    )
    answer = read_by(form, text, BOOK)
    assert (answer.text, answer.tool_calls) == (text, ())
    assert answer.tool_call_error.startswith("a tool call does not parse: ")


def test_delimiters_around_the_text_are_no_part_of_it():
    form, _ = form_of("response_element")
    text = "<|open|>response<|sep|>Hello.<|close|>response<|sep|><|close|>message<|sep|>"
    assert read_by(form, text).text == "Hello."
    answer = read_by(form, f"Let me think.<|close|>think<|sep|>{text}", in_reasoning=True)
    assert (answer.reasoning, answer.text) == ("Let me think.", "Hello.")


def test_an_answer_in_channels_is_reasoning_then_text_or_calls():
    form, _ = form_of("channel")
    thought = " to=self<|message|>Let me think.<|eom|><|start|>assistant"
    answer = read_by(form, f"{thought} to=user<|message|>Hello.")
    assert (answer.reasoning, answer.text) == ("Let me think.", "Hello.")
    call = '<x:calls>\n<x:invoke name="weather">\n<x:parameter name="city">Rome</x:parameter>\n</x:invoke>\n</x:calls>'
    answer = read_by(
        form, f"{thought} to=weather<|message|>{call}<|eom|><|start|>assistant to=weather<|message|>{call}"
    )
    assert (answer.reasoning, answer.text) == ("Let me think.", "")
    assert [json.loads(read.arguments) for read in answer.tool_calls] == [{"city": "Rome"}] * 2


DESCRIBED = (
    "{%- set head = namespace(text='') %}{%- if tools %}{% set head.text = \"List of tools: [\" + (tools | tojson) +"
    " ']' %}<|im_start|>system\n{{ head.text }}<|im_end|>\n{% endif %}{%- for message in messages %}<|im_start|>{{"
    " message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}{%- if add_generation_prompt"
    " %}<|im_start|>assistant\n{% endif %}"
)


def test_calls_of_a_template_without_them_are_written_into_the_text():
    """LFM2.5-Instruct lists tools, and has no delimiters of calls."""
    template = ChatTemplate(DESCRIBED, {})
    form, support = tool_support(template, ("<|im_end|>",))
    assert (support.format, support.error, support.parallel) == ("learned", "", True)
    assert form.special_tokens
    call = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "it\'s"}'}}
    messages = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    assert '<|tool_call_start|>[look_up(word="it\'s")]<|tool_call_end|>' in template.render(messages)


def test_a_template_that_renders_bare_json_is_read_though_it_describes_delimiters():
    source = (
        "{%- if tools %}{{ tools | tojson }} Write <tool_call>JSON</tool_call>.\n{% endif %}{%- for message in messages"
        " %}<|im_start|>{{ message.role }}\n{% if message.tool_calls %}[{% for call in message.tool_calls %}{{"
        " call.function | tojson }}{% if not loop.last %}, {% endif %}{% endfor %}]{% else %}{{ message.content }}{%"
        " endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    _, support = tool_support(ChatTemplate(source, {}), ("<|im_end|>",))
    assert (support.format, support.error) == ("generic_json", "")
