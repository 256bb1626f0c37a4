import json

import pytest
from support.answer_samples import CALLING, NAMES, ONE_CALL, PARIS, PING, TOOLS, format_by_name, read

from areal_actors.tokenization.tool_parsers.base import Answer, Delta, ToolCall
from areal_actors.tokenization.tool_parsers.families import FORMATS, detect_format, format_for_template

CALL = ToolCall(name="weather", arguments=PARIS)
HARMONY = "<|channel|>analysis<|message|>I think.<|end|><|start|>assistant"

WELL_FORMED = {
    "deepseek": [
        (ONE_CALL["deepseek_v3"], [CALL], ""),
        ("Let me look.\n\n" + ONE_CALL["deepseek"], [CALL], "Let me look.\n\n"),
        (
            ONE_CALL["deepseek"].replace(PARIS, '{"city":  "<｜tool▁calls▁end｜>"}'),
            [("weather", '{"city":  "<｜tool▁calls▁end｜>"}')],
            "",
        ),
        (
            ONE_CALL["deepseek"].replace(
                "<｜tool▁calls▁end｜>", "\n" + ONE_CALL["deepseek"][len("<｜tool▁calls▁begin｜>") :]
            ),
            [CALL, CALL],
            "",
        ),
    ],
    "deepseek_v3": [(ONE_CALL["deepseek"], [CALL], "")],
    "generic_json": [
        (f"[{ONE_CALL['generic_json']}, {ONE_CALL['generic_json']}]", [CALL, CALL], ""),
        (f"Let me look.\n```json\n{ONE_CALL['generic_json']}\n```", [CALL], "Let me look."),
        (f"```json\n[{ONE_CALL['generic_json']}]\n```", [CALL], ""),
        (f'\n {{"parameters":{PARIS},"name":"weather"}} ', [CALL], ""),
        (f'{{"id": 1, "type": "function", "name": "weather", "arguments": {PARIS}}}', [CALL], ""),
        (f"Like this: {ONE_CALL['generic_json']}", [], f"Like this: {ONE_CALL['generic_json']}"),
        ('```json\n{"answer": 3}\n```', [], '```json\n{"answer": 3}\n```'),
        ("```json\n[1]\n```\n" + f"```json\n{ONE_CALL['generic_json']}\n```", [CALL], "```json\n[1]\n```"),
    ],
    "glm": [
        ("\n<think></think>\nLet me look.\n" + ONE_CALL["glm"], [CALL], "Let me look."),
        ("<tool_call>ping</tool_call>", [("ping", "{}")], ""),
        (
            (
                '<tool_call>search\n<arg_key>query</arg_key>\n<arg_value> a\n "b" </arg_value>\n'
                '<arg_key>tags</arg_key><arg_value>["x"]</arg_value></tool_call>'
            ),
            [("search", '{"query": " a\\n \\"b\\" ", "tags": ["x"]}')],
            "",
        ),
        (
            "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>5</arg_value>\n</tool_call>",
            [("weather", '{"city": "5"}')],
            "",
        ),
        (
            "<tool_call>weather\n<arg_key>days</arg_key>\n<arg_value>five</arg_value>\n</tool_call>",
            [("weather", '{"days": "five"}')],
            "",
        ),
    ],
    "hermes": [
        ("Let me look.\n" + ONE_CALL["hermes"], [CALL], "Let me look."),
        ("Let me look.\n\n" + ONE_CALL["hermes"], [CALL], "Let me look.\n"),
        (f"{ONE_CALL['hermes']}\n{ONE_CALL['hermes']}\n", [CALL, CALL], ""),
        (f"{ONE_CALL['hermes']} {ONE_CALL['hermes']}", [CALL, CALL], ""),
        (f"\n\n {ONE_CALL['hermes']}", [CALL], ""),
        (f"Now{ONE_CALL['hermes']}\nDone.", [CALL], "Now\nDone."),
        (f'<tool_call>{{"arguments":{PARIS},"name":"weather"}}</tool_call>', [CALL], ""),
        (f'<tool_call>\r\n\t{{ "name" :"weather" , "arguments":  {PARIS} }}\r\n</tool_call>', [CALL], ""),
        (
            '<tool_call>{"name": "weather", "arguments": {"city": "</tool_call>"}}</tool_call>',
            [("weather", '{"city": "</tool_call>"}')],
            "",
        ),
        (
            '<tool_call>{"name": "weather", "arguments": {"city": "<tool_call>{}"}}</tool_call>',
            [("weather", '{"city": "<tool_call>{}"}')],
            "",
        ),
        ('<tool_call>{"name": "ping", "arguments": {}}</tool_call>', [("ping", "{}")], ""),
        (
            '<tool_call>{"name": "ping", "arguments": { "z":1.50,\n"a" : "\\u00e9é\\ud83d" }}</tool_call>',
            [("ping", '{ "z":1.50,\n"a" : "\\u00e9é\\ud83d" }')],
            "",
        ),
        ('<tool_call>{"name": "we\\u0061ther", "arguments": {}}</tool_call>', [("weather", "{}")], ""),
        (ONE_CALL["hermes"] + "</tool_call>", [CALL], "</tool_call>"),
        ("a <tool_calls> b", [], "a <tool_calls> b"),
    ],
    "llama3": [
        (f"<|python_tag|>{ONE_CALL['llama3']}", [CALL], ""),
        (f"{ONE_CALL['llama3']}; {ONE_CALL['llama3']}", [CALL, CALL], ""),
        (f"{ONE_CALL['llama3']};{ONE_CALL['llama3']}\n;\n{ONE_CALL['llama3']}\n", [CALL, CALL, CALL], ""),
        (f'{{"type": "function", "name": "weather", "parameters": {PARIS}}}', [CALL], ""),
        (f"Sure: {ONE_CALL['llama3']}", [], f"Sure: {ONE_CALL['llama3']}"),
        (f"Sure: <|python_tag|>{ONE_CALL['llama3']}", [CALL], "Sure: "),
        (f"{ONE_CALL['llama3']}; done", [CALL], "; done"),
        (f"{ONE_CALL['llama3']};", [CALL], ";"),
        ('{"answer": {"name": 1}}', [], '{"answer": {"name": 1}}'),
        (f'{{"name": "weather", "arguments": {PARIS}}}', [CALL], ""),
    ],
    "mistral": [
        (f'[TOOL_CALLS] [{{"name": "weather", "arguments": {PARIS}, "id": "VvvODy9mT"}}]', [CALL], ""),
        (
            f'[TOOL_CALLS][{{"name": "weather", "arguments": {PARIS}}} ,\n{{"arguments": {{}}, "name": "ping"}} ]',
            [CALL, ("ping", "{}")],
            "",
        ),
        (f"{ONE_CALL['mistral']}{ONE_CALL['mistral']}", [CALL, CALL], ""),
        (f"[TOOL_CALLS]weather[CALL_ID]a1b2[ARGS]{PARIS}", [CALL], ""),
        (f"Let me look.{ONE_CALL['mistral']}", [CALL], "Let me look."),
        (f"[THINK]Hm.[/THINK]{ONE_CALL['mistral']}", [CALL], ""),
        ("[TOOL_CALL] and [ARGS]", [], "[TOOL_CALL] and [ARGS]"),
    ],
    "pythonic": [
        (
            "<|tool_call_start|>[weather(city='Paris', days=3), ping()]<|tool_call_end|>Done.",
            [CALL, ("ping", "{}")],
            "Done.",
        ),
        (
            (
                "<|tool_call_start|>[search(query='a', filters={'x': [None, True, -1.5, null]}, tags=('b', 'ü'),"
                " limit=null)]<|tool_call_end|>"
            ),
            [
                (
                    "search",
                    '{"query": "a", "filters": {"x": [null, true, -1.5, null]}, "tags": ["b", "ü"], "limit": null}',
                )
            ],
            "",
        ),
    ],
    "qwen_coder": [
        ("Let me look.\n\n" + ONE_CALL["qwen_coder"], [CALL], "Let me look."),
        (f"{ONE_CALL['qwen_coder']}\n{ONE_CALL['qwen_coder']}\n", [CALL, CALL], ""),
        ("<tool_call><function=ping></function></tool_call>", [("ping", "{}")], ""),
        (
            "<tool_call><function=weather><parameter=city>Paris</parameter></function></tool_call>",
            [("weather", '{"city": "Paris"}')],
            "",
        ),
        (
            "<tool_call>\n<function=weather>\n<parameter=city>\n\n a\n<b>{}\n\n</parameter>\n</function>\n</tool_call>",
            [("weather", '{"city": "\\n a\\n<b>{}\\n"}')],
            "",
        ),
        (
            "<tool_call>\n<function=weather>\n<parameter=exact>\nTrue\n</parameter>\n<parameter=days>\n-2\n</parameter>\n</function>\n</tool_call>",
            [("weather", '{"exact": true, "days": -2}')],
            "",
        ),
        (
            (
                "<tool_call>\n<function=search>\n<parameter=limit>\nNone\n</parameter>\n"
                "<parameter=filters>\n{'x': 1}\n</parameter>\n</function>\n</tool_call>"
            ),
            [("search", '{"limit": null, "filters": "{\'x\': 1}"}')],
            "",
        ),
        (
            (
                '<tool_call>\n<function=search>\n<parameter=filters>\n{"b": 1,  "a": [2]}\n</parameter>\n'
                "<parameter=more>\n7\n</parameter>\n</function>\n</tool_call>"
            ),
            [("search", '{"filters": {"b": 1,  "a": [2]}, "more": "7"}')],
            "",
        ),
    ],
    "gpt_oss": [
        (HARMONY + ONE_CALL["gpt_oss"], [CALL], ""),
        (f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{PARIS}<|call|>", [CALL], ""),
        (f"{HARMONY}<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{PARIS}", [CALL], ""),
        (
            f"<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant{ONE_CALL['gpt_oss']}",
            [CALL],
            "Let me look.",
        ),
        ("<|channel|>final<|message|>Four.<|return|>", [], "Four."),
        (f"{HARMONY}<|channel|>final<|message|>Four.", [], "Four."),
        ("<|channel|>commentary<|message|>A.<|end|><|start|>assistant<|channel|>final<|message|>B.", [], "A.\nB."),
        ("Four.", [], "Four."),
        ("<|channel|>unknown<|message|>Four.<|end|>", [], "<|channel|>unknown<|message|>Four."),
        ("<|channel|>final", [], "<|channel|>final"),
        ("<|start|>user<|message|>Hi", [], "<|start|>user<|message|>Hi"),
    ],
}


@pytest.mark.parametrize(
    ("name", "text", "calls", "rest"), [(name, *case) for name, cases in WELL_FORMED.items() for case in cases]
)
def test_well_formed_calls_leave_the_text(name, text, calls, rest):
    answer = read(name, text)
    expected = [call if isinstance(call, ToolCall) else ToolCall(name=call[0], arguments=call[1]) for call in calls]
    assert list(answer.tool_calls) == expected
    assert answer.text == rest
    assert answer.tool_call_error == ""
    assert all(isinstance(json.loads(call.arguments), dict) for call in answer.tool_calls)


@pytest.mark.parametrize("name", CALLING)
def test_the_same_call_in_every_format(name):
    assert read(name, ONE_CALL[name]) == Answer(tool_calls=(CALL,))


REASONING = [
    # text, whether the prompt opened the reasoning, reasoning, text
    ("<think>\nHm.\n</think>\n\nFour.", False, "Hm.", "Four."),
    ("<think>Hm.</think>Four.", False, "Hm.", "Four."),
    ("\n <think>Hm.</think>\nFour.\n", False, "Hm.", "Four.\n"),
    ("<think>\n\n</think>\n\nFour.", False, "", "Four."),
    ("<think></think>", False, "", ""),
    ("<think>\n\nHm.\n\n</think>\n\n\nFour.", False, "\nHm.\n", "\nFour."),
    ("<think>\nHm.\n", False, "Hm.\n", ""),
    ("<think>", False, "", ""),
    ("<thinking>a</think>b</thinking>c", False, "a</think>b", "c"),
    ("<think>a<think>b</think>c</think>d", False, "a<think>b", "c</think>d"),
    ("<think>a</think>\n\n<think>b</think>", False, "a", "<think>b</think>"),
    ("Four. <think>Hm.</think>", False, "", "Four. <think>Hm.</think>"),
    ("Hm.</think>Four.", False, "", "Hm.</think>Four."),
    ("<thin", False, "", "<thin"),
    ("Hm.\n</think>\n\nFour.", True, "Hm.", "Four."),
    ("\n</think>\n\nFour.", True, "", "Four."),
    ("<think>\nHm.\n</think>\n\nFour.", True, "Hm.", "Four."),
    ("Hm.", True, "Hm.", ""),
    ("Hm.</thin", True, "Hm.</thin", ""),
    ("", True, "", ""),
    ("  Hm. </think> Four.", True, "  Hm. ", " Four."),
]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "gpt_oss"])
@pytest.mark.parametrize(("text", "in_reasoning", "reasoning", "rest"), REASONING)
def test_reasoning_is_separated_from_text(name, text, in_reasoning, reasoning, rest):
    for tools in (TOOLS, ()):
        assert read(name, text, tools, in_reasoning=in_reasoning) == Answer(reasoning=reasoning, text=rest)


@pytest.mark.parametrize("name", [name for name in CALLING if name != "gpt_oss"])
def test_a_call_within_reasoning_is_reasoning_and_one_after_it_a_call(name):
    answer = read(name, f"<think>\nShall I?\n{ONE_CALL[name]}\n</think>\n\n{ONE_CALL[name]}")
    assert answer == Answer(reasoning=f"Shall I?\n{ONE_CALL[name]}", tool_calls=(CALL,))
    unclosed = read(name, f"<think>\n{ONE_CALL[name]}").tool_calls
    assert unclosed == ((CALL,) if FORMATS[name].in_reasoning else ())


def test_harmony_reasoning_is_the_analysis_channel():
    assert read("gpt_oss", HARMONY + "<|channel|>final<|message|>Four.") == Answer(reasoning="I think.", text="Four.")
    assert read("gpt_oss", HARMONY + HARMONY) == Answer(reasoning="I think.\nI think.", text="<|start|>assistant")
    assert read("gpt_oss", "<|channel|>analysis<|message|>I thi").reasoning == "I thi"
    assert read("gpt_oss", "I think.<|end|><|start|>assistant" + ONE_CALL["gpt_oss"], in_reasoning=True) == Answer(
        reasoning="I think.", tool_calls=(CALL,)
    )


def test_text_streams_at_once_except_what_may_become_a_mark():
    stream = format_by_name("hermes").stream(TOOLS)
    assert stream.push("Hel") == [Delta(text="Hel")]
    assert stream.push("lo <tool") == [Delta(text="lo ")]
    assert stream.push("box>\n") == [Delta(text="<toolbox>")]
    assert stream.push("!") == [Delta(text="\n!")]
    assert stream.push(ONE_CALL["hermes"][:-1]) == []
    assert stream.push(">") == [Delta(call=0, name="weather", arguments=PARIS)]
    assert stream.push("\n") == []
    assert stream.finish() == ([], "")


def test_reasoning_streams_at_once():
    stream = format_by_name("qwen_coder").stream((), in_reasoning=True)
    assert stream.push("Hm") == [Delta(reasoning="Hm")]
    assert stream.push("m</thin") == [Delta(reasoning="m")]
    assert stream.push("k>\n") == []
    assert stream.push("\nFour\n") == [Delta(text="Four\n")]


def test_an_answer_in_json_that_is_no_call_streams_at_once():
    stream = format_by_name("llama3").stream(TOOLS)
    assert stream.push('{"ans') == []
    assert stream.push('wer": ') == [Delta(text='{"answer": ')]


def test_arguments_of_any_length_come_out_of_a_stream_as_they_were_written():
    arguments = json.dumps({"query": "x\n" * 20_000})
    text = f'<tool_call>\n{{"name": "search", "arguments": {arguments}}}\n</tool_call>'
    stream = format_by_name("hermes").stream(TOOLS)
    pieces = [piece for at in range(0, len(text), 7) for piece in stream.push(text[at : at + 7])]
    assert pieces == [Delta(call=0, name="search", arguments=arguments)]


@pytest.mark.parametrize(
    ("written", "schema", "expected"),
    [
        ("5", {"type": ["integer", "null"]}, "5"),
        ("null", {"type": ["integer", "null"]}, "null"),
        ("05", {"type": "integer"}, '"05"'),
        ("1.50", {"type": "number"}, "1.50"),
        ("1.50", {"type": "integer"}, '"1.50"'),
        ("5", {"anyOf": [{"type": "string"}, {"type": "integer"}]}, "5"),
        ("true", {"type": "boolean"}, "true"),
        ("yes", {"type": "boolean"}, '"yes"'),
        ("null", {"type": "string"}, '"null"'),
        ("5", {"enum": [5, 6]}, "5"),
        ("5", {"const": "5"}, '"5"'),
        ("[1]", {}, "[1]"),
        ("[1", {}, '"[1"'),
        ("5", {}, '"5"'),
        ("[1]", {"type": "object"}, '"[1]"'),
        ("[1]", {"type": "string"}, '"[1]"'),
        ('{"a": 1, "a": 2}', {"type": "object"}, '"{\\"a\\": 1, \\"a\\": 2}"'),
        ("{}", {"$ref": "#/$defs/thing"}, "{}"),
        ("5", {"$ref": "#/$defs/itself"}, '"5"'),
        ("5", {"$ref": "elsewhere"}, '"5"'),
        ("5", True, '"5"'),
        ("9" * 400, {"type": "integer"}, '"' + "9" * 400 + '"'),
        ("٣", {"type": "integer"}, '"٣"'),
    ],
)
def test_values_written_as_text_are_typed_by_the_schema(written, schema, expected):
    definitions = {"thing": {"type": "object"}, "itself": {"$ref": "#/$defs/itself"}}
    tool = {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": schema}, "$defs": definitions}},
    }
    for name, text in {
        "glm": f"<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>{written}</arg_value>\n</tool_call>",
        "qwen_coder": f"<tool_call>\n<function=f>\n<parameter=x>\n{written}\n</parameter>\n</function>\n</tool_call>",
    }.items():
        assert read(name, text, [tool]).tool_calls == (ToolCall(name="f", arguments=f'{{"x": {expected}}}'),)


def test_every_format_has_a_name():
    assert [format_by_name(name).name for name in NAMES] == list(NAMES)


def test_reasoning_marks_are_text_where_the_template_knows_none():
    text = "<think>Hm.</think>Four."
    assert format_for_template("{{ tools }}<tool_call>").parse(text, [PING]) == Answer(text=text)
    assert format_for_template("{{ tools }}<tool_call></think>").parse(text, [PING]) == Answer(
        reasoning="Hm.", text="Four."
    )


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("", "none"),
        ("{{ messages }}", "none"),
        ("no tools here", "none"),
        ("{% if tools %}", "generic_json"),
        ("{{- tools | tojson }}", "generic_json"),
    ],
)
def test_a_template_that_shows_tools_and_no_marks_gets_generic_json(template, name):
    assert detect_format(template) == name
