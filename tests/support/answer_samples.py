"""Tools and well-formed completions that the tests of answer formats share."""

from areal_actors.tokenization.tool_parsers.base import Answer, ToolCall
from areal_actors.tokenization.tool_parsers.families import FORMATS
from areal_actors.tokenization.tool_parsers.stream_parser import DelimitedFormat
from areal_actors.tokenization.tool_parsers.syntax import MISTRAL_THINK, THINK, CallSyntax

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Its name."},
                "days": {"type": "integer"},
                "exact": {"type": "boolean"},
            },
            "required": ["city"],
        },
    },
}
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Searches.",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "filters": {"type": "object"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            },
            "required": ["query"],
        },
    },
}
PING = {"type": "function", "function": {"name": "ping", "description": "Pings."}}
TOOLS = (WEATHER, SEARCH, PING)
NAMES = tuple(FORMATS)
CALLING = tuple(name for name in NAMES if name != "none")

PARIS = '{"city": "Paris", "days": 3}'
ONE_CALL = {
    "deepseek": (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{PARIS}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        f"{PARIS}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "generic_json": f'{{"name": "weather", "arguments": {PARIS}}}',
    "glm": (
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
    ),
    "gpt_oss": f" to=functions.weather<|channel|>commentary json<|message|>{PARIS}<|call|>",
    "hermes": f'<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>',
    "llama3": f'{{"name": "weather", "parameters": {PARIS}}}',
    "mistral": f"[TOOL_CALLS]weather[ARGS]{PARIS}",
    "python_lines": '<function_calls>weather(city="Paris", days=3)</function_calls>',
    "pythonic": '<|tool_call_start|>[weather(city="Paris", days=3)]<|tool_call_end|>',
    "qwen_coder": (
        "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
    ),
}
"""The same call in every format."""


def format_by_name(name, reasoning=None):
    """The format, with these reasoning delimiters, or all that its family knows."""
    parser = FORMATS[name]
    reasoning = reasoning or (MISTRAL_THINK if name == "mistral" else THINK)
    return DelimitedFormat(name, parser, reasoning) if isinstance(parser, CallSyntax) else parser


def read(name, text, tools=TOOLS, **kwargs):
    """The answer, which has to come out the same when the text comes in one character at a time."""
    return read_by(format_by_name(name), text, tools, **kwargs)


def read_by(form, text, tools=TOOLS, **kwargs):
    """The same with a format."""
    answer = form.parse(text, tools, **kwargs)
    assert put_together(form, list(text), tools, **kwargs) == answer
    return answer


def streamed(name, parts, tools=TOOLS, **kwargs):
    """The answer put together from a stream's pieces."""
    return put_together(format_by_name(name), parts, tools, **kwargs)


def put_together(form, parts, tools=TOOLS, **kwargs):
    """The same with a format."""
    stream = form.stream(tools, **kwargs)
    pieces = [piece for part in parts for piece in stream.push(part)]
    rest, problem = stream.finish()
    pieces += rest
    calls = {}
    for piece in pieces:
        assert (piece.reasoning != "") + (piece.text != "") + (piece.call is not None) == 1, (
            "a piece is of one kind, and never empty"
        )
        if piece.call is not None:
            assert (piece.name != "") == (piece.call not in calls), "the name stands in a call's first piece"
            name_so_far, identifier, arguments = calls.get(piece.call, (piece.name, piece.id, ""))
            calls[piece.call] = (name_so_far, identifier, arguments + piece.arguments)
    assert list(calls) == list(range(len(calls)))
    return Answer(
        reasoning="".join(piece.reasoning for piece in pieces),
        text="".join(piece.text for piece in pieces),
        tool_calls=tuple(
            ToolCall(name=name, arguments=arguments, id=identifier) for name, identifier, arguments in calls.values()
        ),
        tool_call_error=problem,
    )
