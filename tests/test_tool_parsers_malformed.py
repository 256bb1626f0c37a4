import json

import pytest
from support.answer_samples import CALLING, NAMES, ONE_CALL, PARIS, TOOLS, read

DEEP = '{"a":' * 101 + "1" + "}" * 101
OBJECTS = [
    # what stands in the text, and why it is no call
    ('{"name": "weather", "arguments": {"city": "Paris",}}', "invalid"),
    ('{"name": "weather", "arguments": {"city": "Paris"},}', "invalid: expected a key in double quotes"),
    ('{"name": "weather", "arguments": {"city": Paris}}', "invalid"),
    ("{'name': 'weather', 'arguments': {'city': 'Paris'}}", "invalid: expected a key in double quotes|^$"),
    ('{"name": "weather" "arguments": {}}', "invalid: expected ',' or '}'"),
    ('{"name": "weather", "arguments" {}}', "invalid"),
    ('{"name": "weather", "arguments": {"city": "Pa\nris"}}', "a string is not closed|invalid"),
    ('{"name": "weather", "arguments": {"city": "Pa\tris"}}', "a string is not closed|invalid"),
    ('{"name": "weather", "arguments": {"city": "\\q"}}', "invalid: Invalid"),
    ('{"name": "weather", "arguments": {"city": "\\u12"}}', "invalid: Invalid"),
    ('{"name": "weather", "arguments": {"days": NaN}}', "NaN is not JSON"),
    ('{"name": "weather", "arguments": {"days": Infinity}}', "Infinity is not JSON"),
    ('{"name": "weather", "arguments": {"days": 01}}', "invalid"),
    ('{"name": "weather", "arguments": {"days": +1}}', "invalid"),
    ('{"name": "weather", "arguments": {"days": ' + "9" * 5000 + "}}", "invalid"),
    ('{"name": "weather", "arguments": {"exact": True}}', "invalid"),
    ('{"name": "weather", "arguments": {"city": "a", "city": "b"}}', "duplicate key"),
    ('{"name": "weather", "name": "search", "arguments": {}}', "duplicate key"),
    ('{"name": "weather", "arguments": {}, "arguments": {}}', "duplicate key"),
    ('{"name": "weather", "arguments": {"a": {"b": 1, "b": 2}}}', "duplicate key"),
    ('{"name": "weather", "arguments": "{\\"city\\": \\"Paris\\"}"}', "not an object"),
    ('{"name": "weather", "arguments": ["Paris"]}', "not an object"),
    ('{"name": "weather", "arguments": null}', "not an object"),
    ('{"name": "weather", "arguments": 3}', "not an object"),
    ('{"name": "weather"}', "is missing"),
    ('{"arguments": {"city": "Paris"}}', "its name is missing"),
    ('{"name": null, "arguments": {}}', "its name is not a string"),
    ('{"name": ["weather"], "arguments": {}}', "its name is not a string"),
    ('{"name": "", "arguments": {}}', "'' is not the name of a tool"),
    ('{"name": "weather ", "arguments": {}}', "'weather ' is not the name of a tool"),
    ('{"name": "' + "w" * 129 + '", "arguments": {}}', "is not the name of a tool"),
    ('{"name": "weather", "arguments": {}, "thought": 1}', "'thought' is not a key of a tool call"),
    ('{"name": "weather", "args": {}}', "'args' is not a key of a tool call"),
    ('{"name": "weather", "arguments": {"x": ' + DEEP + "}}", "deeper than 100"),
    ('{"name": "weather", "arguments": {} /* none */}', "invalid"),
    ('{"name": "weather", "arguments": {}', "complete|a delimiter inside|invalid"),
    ('{"name": "weather", "arguments": {"city": "Paris', "complete|not closed|invalid"),
]
WRAPPED = {
    "hermes": "<tool_call>\n%s\n</tool_call>",
    "llama3": "<|python_tag|>%s",
    "generic_json": "```json\n%s\n```",
    "mistral": "[TOOL_CALLS][%s]",
}


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize(("written", "why"), OBJECTS)
def test_a_broken_object_stays_in_the_text_and_the_problem_has_the_reason(name, written, why):
    text = "Let me look.\n" + WRAPPED[name].replace("%s", written)
    answer = read(name, text)
    assert answer.text == text
    assert answer.tool_calls == ()
    if not (name == "generic_json" and written.startswith("{'")):
        assert answer.tool_call_error.startswith("a tool call does not parse: ")
    assert any(
        part in answer.tool_call_error if part != "^$" else not answer.tool_call_error for part in why.split("|")
    )


MALFORMED = {
    "hermes": [
        ("<tool_call>", "incomplete"),
        ("<tool_call></tool_call>", "'<'"),
        ("<tool_call>\n</tool_call>", "'<'"),
        ("<tool_call>weather</tool_call>", "'w'"),
        (f'<tool_call>{{"name": "weather", "arguments": {PARIS}}}', "incomplete"),
        (f'<tool_call>{{"name": "weather", "arguments": {PARIS}}}</tool_cal', "incomplete"),
        (f'<tool_call>{{"name": "weather", "arguments": {PARIS}}} and more</tool_call>', "expected </tool_call>"),
        (f'<tool_call>{{"name": "weather", "arguments": {PARIS}}}}}</tool_call>', "expected </tool_call>"),
        (f"<tool_call>\n<tool_call>\n{ONE_CALL['hermes'][12:]}\n</tool_call>", "'<'"),
        (f'<tool_call>[{{"name": "weather", "arguments": {PARIS}}}]</tool_call>', "expected {, found '['"),
        ('<tool_call>\n"weather"\n</tool_call>', "expected {"),
        ('<tool_call>{"name": "weather", "arguments": {"city": "</tool_call>', "incomplete"),
    ],
    "qwen_coder": [
        ("<tool_call>\n<function=weather>\n", "incomplete"),
        ("<tool_call></tool_call>", "<function=NAME>"),
        ("<tool_call>\nweather\n</tool_call>", "<function=NAME>"),
        ("<tool_call>\n<function=>\n</function>\n</tool_call>", "<function=NAME>"),
        ("<tool_call>\n<function=weather\n</function>\n</tool_call>", "<function=NAME>"),
        ("<tool_call>\n<function=weather>\n</tool_call>", "</function>"),
        ("<tool_call>\n<function=the other>\n</function>\n</tool_call>", "'the other' is not the name of a tool"),
        ("<tool_call>\n<function=weather>\nParis\n</function>\n</tool_call>", "<parameter=KEY>"),
        ("<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</function>\n</tool_call>", "</parameter>"),
        (
            "<tool_call>\n<function=weather>\n<parameter=city\nParis\n</parameter>\n</function>\n</tool_call>",
            "<parameter=KEY>",
        ),
        (
            "<tool_call>\n<function=weather>\n<parameter=>\nParis\n</parameter>\n</function>\n</tool_call>",
            "<parameter=KEY>",
        ),
        (
            "<tool_call>\n<function=weather>\n<parameter=city>\na\n</parameter>\n<parameter=city>\nb\n</parameter>\n</function>\n</tool_call>",
            "twice",
        ),
        (
            "<tool_call>\n<function=weather>\n<parameter=city>\na\n</parameter>\nthere\n</function>\n</tool_call>",
            "inside <function=",
        ),
        (
            "<tool_call>\n<function=weather>\n<function=weather>\n</function>\n</function>\n</tool_call>",
            "inside <function=",
        ),
        ("<tool_call>\n<function=weather>\n</function>\nnow\n</tool_call>", "</function>"),
        (
            "<tool_call>\n<function=weather>\n<parameter=city>\n</tool_call>\n</parameter>\n</function>\n</tool_call>",
            "</function>",
        ),
        (ONE_CALL["hermes"], "<function=NAME>"),
    ],
    "glm": [
        ("<tool_call>", "incomplete"),
        ("<tool_call>weather\n<arg_key>city</arg_key>", "incomplete"),
        ("<tool_call></tool_call>", "'' is not the name of a tool"),
        ("<tool_call>weather Paris</tool_call>", "'weather Paris' is not the name of a tool"),
        ("<tool_call>weather\n<arg_key>city</arg_key>\n</tool_call>", "<arg_value>"),
        ("<tool_call>weather\n<arg_value>Paris</arg_value>\n</tool_call>", "<arg_key>"),
        ("<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris\n</tool_call>", "<arg_value>"),
        ("<tool_call>weather\n<arg_key>city</arg_key>\nis\n<arg_value>Paris</arg_value>\n</tool_call>", "<arg_value>"),
        (
            "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>a</arg_value>\n<arg_key>city</arg_key>\n<arg_value>b</arg_value>\n</tool_call>",
            "'city' occurs twice",
        ),
        ("<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>a</arg_value>\nnow\n</tool_call>", "after its name"),
    ],
    "deepseek": [
        ("<｜tool▁calls▁begin｜>", "incomplete"),
        ("<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>", "expected <｜tool▁call▁begin｜>"),
        (ONE_CALL["deepseek"].removesuffix("<｜tool▁calls▁end｜>"), "incomplete"),
        (ONE_CALL["deepseek"].replace("<｜tool▁call▁end｜>", ""), "expected <｜tool▁call▁end｜>"),
        (ONE_CALL["deepseek"].replace("<｜tool▁sep｜>", ""), "is not the name of a tool|expected <｜tool▁sep｜>"),
        (ONE_CALL["deepseek"].replace("weather", "the other"), "'the other' is not the name of a tool"),
        (ONE_CALL["deepseek"].replace(PARIS, "[1]"), "expected {"),
        (ONE_CALL["deepseek"].replace("}", ",}"), "invalid"),
        (ONE_CALL["deepseek"].replace("<｜tool▁call▁begin｜>", "so: "), "expected <｜tool▁call▁begin｜>"),
        (ONE_CALL["deepseek_v3"].replace("```json", "```python"), "expected ```json"),
        (ONE_CALL["deepseek_v3"].replace("```<", "<"), "expected ```"),
        (ONE_CALL["deepseek_v3"].replace("function<", "method<"), "expected {"),
        (ONE_CALL["deepseek_v3"].replace("weather", "the other"), "'the other' is not the name of a tool"),
        (
            ONE_CALL["deepseek"].replace(
                "<｜tool▁calls▁end｜>",
                "<｜tool▁call▁begin｜>the other<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            ),
            "'the other'",
        ),
    ],
    "mistral": [
        ("[TOOL_CALLS]", "incomplete"),
        ("[TOOL_CALLS][]", "expected {, found ']'"),
        ("[TOOL_CALLS]weather", "incomplete"),
        ("[TOOL_CALLS]weather[ARGS]", "incomplete"),
        ("[TOOL_CALLS]weather[ARGS]{", "incomplete"),
        ("[TOOL_CALLS]weather[ARGS][1]", "expected {"),
        ("[TOOL_CALLS]weather {}", "a list, or a name and [ARGS]"),
        ("[TOOL_CALLS][ARGS]{}", "expected {"),
        ('[TOOL_CALLS][{"name": "weather", "arguments": {}}', "incomplete"),
        ('[TOOL_CALLS][{"name": "weather", "arguments": {}} {"name": "weather", "arguments": {}}]', "',' or ']'"),
        ('[TOOL_CALLS][{"name": "weather", "arguments": {}},]', "expected {, found ']'"),
        ('[TOOL_CALLS][{"name": "weather", "arguments": {}}, {"name": "the other", "arguments": {}}]', "'the other'"),
    ],
    "llama3": [
        ('{"name": "the other", "parameters": {}}', "'the other' is not the name of a tool"),
        ('{"name": "weather", "parameters": {"city": "Paris"}', "incomplete"),
        ('{"name": "weather", "parameters": {}, "arguments": {}}', "several arguments objects"),
        ('{"parameters": {}}', "its name is missing"),
        ("<|python_tag|>", "incomplete"),
        ("<|python_tag|>print(1)", "expected {, found 'p'"),
        ('<|python_tag|>weather.call(city="Paris")', "expected {"),
    ],
    "pythonic": [
        ("<|tool_call_start|>", "incomplete"),
        ("<|tool_call_start|><|tool_call_end|>", "not a list of Python calls"),
        ("<|tool_call_start|>[]<|tool_call_end|>", "expected a list of Python calls"),
        ("<|tool_call_start|>weather()<|tool_call_end|>", "expected a list of Python calls"),
        ('<|tool_call_start|>[weather("Paris")]<|tool_call_end|>', "keyword arguments only"),
        ("<|tool_call_start|>[weather]<|tool_call_end|>", "keyword arguments only"),
        ("<|tool_call_start|>[weather(city=Paris)]<|tool_call_end|>", "not literals"),
        ("<|tool_call_start|>[weather(**{'city': 'a'})]<|tool_call_end|>", "no name"),
        ("<|tool_call_start|>[weather(city='a', city='b')]<|tool_call_end|>", "occurs twice"),
        ("<|tool_call_start|>[weather(days=1e999)]<|tool_call_end|>", "not literals"),
        ("<|tool_call_start|>[weather(days={1: 2})]<|tool_call_end|>", "not literals"),
        ("<|tool_call_start|>[weather(days={1, 2})]<|tool_call_end|>", "not literals"),
        ("<|tool_call_start|>[weather(city=b'a')]<|tool_call_end|>", "not literals"),
        ("<|tool_call_start|>[weather(days=(lambda: 1)())]<|tool_call_end|>", "not literals"),
        ("<|tool_call_start|>[weather(city='a'<|tool_call_end|>", "not a list of Python calls"),
        ("<|tool_call_start|>[weather(city='\x00')]<|tool_call_end|>", "not a list of Python calls|not plain"),
        ("<|tool_call_start|>" + "[" * 2000 + "<|tool_call_end|>", "brackets"),
        ("<|tool_call_start|>" + "-" * 50_000 + "1<|tool_call_end|>", "not a list of Python calls|expected"),
        (
            "<|tool_call_start|>[weather(days=" + "-" * 3000 + "1)]<|tool_call_end|>",
            "not a list of Python calls|not plain",
        ),
        (
            "<|tool_call_start|>[weather(days=" + "9" * 5000 + ")]<|tool_call_end|>",
            "not a list of Python calls|not plain",
        ),
    ],
    "python_lines": [
        ("<function_calls></function_calls>", "expected a list of Python calls"),
        ("<function_calls>x = 1\nweather()</function_calls>", "not a list of Python calls"),
        ("<function_calls>[weather()]</function_calls>", "keyword arguments only"),
        ("<function_calls>weather(city='a'</function_calls>", "not a list of Python calls"),
        ("<function_calls>weather()", "incomplete"),
    ],
    "gpt_oss": [
        (ONE_CALL["gpt_oss"].replace("weather", "the(other)"), "'the(other)' is not the name of a tool|^$"),
        (ONE_CALL["gpt_oss"].replace(PARIS, "Paris"), "expected {"),
        (ONE_CALL["gpt_oss"].replace(PARIS, ""), "incomplete"),
        (ONE_CALL["gpt_oss"].replace(PARIS, PARIS[:-1]), "incomplete"),
        (ONE_CALL["gpt_oss"].replace(PARIS, PARIS + " now"), "there is text after"),
        (ONE_CALL["gpt_oss"].replace(PARIS, "[1]"), "expected {"),
        (ONE_CALL["gpt_oss"].replace("3}", "3,}"), "invalid"),
        (ONE_CALL["gpt_oss"].replace("<|call|>", "<|return|>").replace("3}", "3"), "incomplete"),
    ],
}


@pytest.mark.parametrize(
    ("name", "text", "why"), [(name, *case) for name, cases in MALFORMED.items() for case in cases]
)
def test_a_malformed_call_stays_as_written_and_the_problem_has_the_reason(name, text, why):
    answer = read(name, text)
    assert answer.text == text
    assert answer.tool_calls == ()
    assert answer.tool_call_error.startswith("a tool call does not parse: ")
    assert any(part in answer.tool_call_error for part in why.split("|"))


@pytest.mark.parametrize("name", CALLING)
def test_a_call_of_a_tool_that_was_not_declared_is_a_call(name):
    answer = read(name, ONE_CALL[name], TOOLS[1:])
    assert (answer.text, answer.tool_call_error) == ("", "")
    assert [(call.name, sorted(json.loads(call.arguments))) for call in answer.tool_calls] == [
        ("weather", ["city", "days"])
    ]


@pytest.mark.parametrize("name", CALLING)
def test_without_tools_a_call_is_text_and_no_problem(name):
    text = ("" if name == "gpt_oss" else "Hello\n") + ONE_CALL[name]
    answer = read(name, text, ())
    assert (answer.text, answer.tool_calls, answer.tool_call_error) == (text, (), "")


@pytest.mark.parametrize("name", ["hermes", "qwen_coder", "glm", "deepseek", "mistral", "pythonic"])
def test_after_a_malformed_call_the_next_one_is_read(name):
    broken = ONE_CALL[name].replace("weather", "the other")
    answer = read(name, f"{broken}\n{ONE_CALL[name]}\n{broken}")
    assert [call.name for call in answer.tool_calls] == ["weather"]
    assert answer.text.startswith(broken)
    assert answer.text.endswith(broken)
    assert answer.tool_call_error.endswith("(and 1 more)")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\n",
        "Hello",
        "  Hello\n\n",
        "{",
        "[",
        "[1, 2]",
        '{"answer": 3}',
        '{"n',
        "a < b",
        "<",
        "x <tool",
        "</tool_call>",
        "</think>",
        "```",
        "é\x00\U0001f600",
    ],
)
def test_what_does_not_look_like_a_call_is_text_and_no_problem(name, text):
    answer = read(name, text)
    assert (answer.text, answer.tool_call_error) == (text.removeprefix("\n") if name == "glm" else text, "")
