"""Tool calls of model families whose syntax is learned from the chat template."""

import json

import pytest
from support.answer_samples import PING, TOOLS, read_by
from support.family_templates import ONE_CALL, PARIS, SINGLE_CALL, STOPS, TEMPLATES, form_of, template_of

from areal_actors.core.errors import SetupError
from areal_actors.tokenization.chat_template import ChatTemplate
from areal_actors.tokenization.tool_parsers.families import FORMATS, format_names
from areal_actors.tokenization.tool_parsers.round_trip import tool_support

CHATML = """{% if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}CALLS<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def chatml(calls):
    """A template with this rendering of a message's calls."""
    return ChatTemplate(CHATML.replace("CALLS", calls), {})


@pytest.mark.parametrize("family", TEMPLATES)
def test_the_syntax_of_a_family_is_learned_and_its_calls_are_read_back(family):
    _, support = tool_support(template_of(family), STOPS.get(family, ()))
    assert (support.format, support.error) == ("learned", "")
    assert support.parallel or family in SINGLE_CALL


@pytest.mark.parametrize("family", TEMPLATES)
def test_a_call_is_read_after_text_and_in_any_chunks(family):
    form, _ = form_of(family)
    for text in ("", "Let me look."):
        answer = read_by(form, text + ("\n" if text else "") + ONE_CALL[family])
        assert (answer.text.rstrip("\n"), answer.tool_call_error) == (text, "")
        assert [(call.name, json.loads(call.arguments)) for call in answer.tool_calls] == [
            ("weather", json.loads(PARIS))
        ]


@pytest.mark.parametrize("family", TEMPLATES)
def test_an_undeclared_tool_is_a_call_and_without_tools_there_is_none(family):
    form, _ = form_of(family)
    answer = read_by(form, ONE_CALL[family], TOOLS[1:])
    assert [(call.name, sorted(json.loads(call.arguments))) for call in answer.tool_calls] == [
        ("weather", ["city", "days"])
    ]
    assert read_by(form, ONE_CALL[family], ()).text == ONE_CALL[family]


@pytest.mark.parametrize("family", TEMPLATES)
def test_a_damaged_call_stays_text_and_the_problem_has_the_reason(family):
    form, _ = form_of(family)
    whole = ONE_CALL[family]
    no_name = whole.replace("functions.weather:0" if family == "kimi_k2" else "weather", "the weather")
    for text in (whole[: len(whole) * 2 // 3], no_name):
        answer = read_by(form, text)
        assert (answer.text, answer.tool_calls) == (text, ())
        assert answer.tool_call_error.startswith("a tool call does not parse: ")


@pytest.mark.parametrize("family", TEMPLATES)
def test_what_is_read_is_rendered_again_as_it_was_written(family):
    form, template = form_of(family)
    user = {"role": "user", "content": "Well?"}
    call = read_by(form, ONE_CALL[family]).tool_calls[0]
    function = {"name": call.name, "arguments": call.arguments}
    answer = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": call.id or "callP1a2r", "type": "function", "function": function}],
    }
    whole = template.render([user, answer, {"role": "tool", "tool_call_id": "callP1a2r", "content": "sunny"}], TOOLS)
    spaceless = "".join(whole.split())
    assert "".join(ONE_CALL[family].split()).removesuffix("}]</tool_calls>") in spaceless


def test_ids_that_name_no_function_are_replaced_where_the_template_writes_ids_only():
    _, template = form_of("kimi_k2")
    call = {"id": "call_77", "type": "function", "function": {"name": "ping", "arguments": "{}"}}
    text = template.render(
        [{"role": "user", "content": "u"}, {"role": "assistant", "content": "", "tool_calls": [call]}], [PING]
    )
    assert "<|tool_call_begin|>functions.ping:0<|tool_call_argument_begin|>{}" in text
    assert "call_77" not in text


def test_a_template_that_renders_calls_only_beside_null_content_gets_null():
    calls = (
        "{% if message.content is none %}<tool_call>\n{{ message.tool_calls[0].function | tojson }}\n</tool_call>{%"
        " endif %}"
    )
    template = ChatTemplate(CHATML.replace("{{ message.content }}CALLS", "{{ message.content or '' }}" + calls), {})
    form, support = tool_support(template, ())
    assert (form.name, support.error, support.parallel) == ("hermes", "", False)
    assert template.dialect.null_content


def test_calls_that_are_not_read_back_are_an_error_with_the_rendered_text():
    template = chatml(
        "{% for call in message.tool_calls %}CALL {{ call.function.name }} WITH {{ call.function.arguments.values() |"
        " list }}{% endfor %}"
    )
    _, support = tool_support(template, ())
    assert "does not parse as generic_json" in support.error
    assert "CALL find_flights WITH" in support.error


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("{% for message in messages %}{{ message.content }}{% endfor %}", "the template does not support tools"),
        (
            "{{ tools }}{% for message in messages %}{{ message.content }}{% endfor %}",
            "the template renders no tool calls",
        ),
        ("", "there is no chat template"),
        ("{% if tools %}{{ raise_exception('no tools') }}{% endif %}{{ messages }}", "the template rejects"),
    ],
)
def test_a_template_without_tools_states_it(source, error):
    _, support = tool_support(ChatTemplate(source, {}), ())
    assert error in support.error


def test_a_format_by_name_is_the_only_one_that_is_tested():
    form, support = tool_support(template_of("seed_oss"), (), "hermes")
    assert (form.name, support.format) == ("hermes", "hermes")
    assert "does not parse as hermes" in support.error
    assert tool_support(template_of("seed_oss"), (), "learned")[1].error == ""
    assert tool_support(template_of("seed_oss"), (), "none")[1].error == "gateway.tool_format is none"


def test_an_unknown_format_is_an_error_with_the_known_ones():
    with pytest.raises(SetupError, match=r"gateway\.tool_format is 'hermes2'; expected one of auto, learned, .*hermes"):
        tool_support(template_of("seed_oss"), (), "hermes2")
    assert set(FORMATS) < set(format_names())
