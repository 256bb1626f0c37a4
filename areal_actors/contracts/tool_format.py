"""Contract of every format of tool calls: see `AnswerFormat`.

A case takes a format, examples of its calls, and random numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from areal_actors.core.errors import RequestError
from areal_actors.tokenization.tool_parsers.base import Answer, AnswerFormat, Delta, ToolCall

TEXTS = 300
PARAMETERS = {
    "type": "object",
    "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["place"],
}
TOOLS: Sequence[dict[str, Any]] = (
    {"type": "function", "function": {"name": "weather", "description": "of a place", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {}}}},
)
PIECES = (
    "Hello",
    " ",
    "\n",
    "weather",
    "stop",
    '{"name": "weather", "arguments": {"place": "Ulm"}}',
    '{"place": "Ulm", "days": 3}',
    "{",
    "}",
    '"',
)

Example = tuple[str, str, dict[str, Any]]
"""Text of a call, its name and its arguments."""


class FormatHarness(NamedTuple):
    form: AnswerFormat
    examples: Sequence[Example]
    random: Random

    def text(self) -> str:
        """Words, delimiters, calls and parts of calls in any order."""
        return "".join(self._piece() for _ in range(self.random.randint(0, 8)))

    def _piece(self) -> str:
        if self.random.random() < 0.3:
            return self.random.choice(
                (*PIECES, *self.form.marks, *(mark for pair in self.form.reasoning for mark in pair))
            )
        call, *_ = self.random.choice(self.examples)
        start = self.random.choice((0, 0, self.random.randint(0, len(call))))
        return call[start : self.random.choice((len(call), self.random.randint(start, len(call))))]


Case = Callable[[FormatHarness], None]


def _read_stream(form: AnswerFormat, text: str, tools: Sequence[dict[str, Any]], random: Random) -> Answer:
    """Parse a text that arrives in parts."""
    stream, deltas = form.stream(tools), list[Delta]()
    while text:
        length = random.randint(1, 5)
        deltas += stream.push(text[:length])
        text = text[length:]
    rest, problem = stream.finish()
    deltas += rest
    names: dict[int, list[str]] = {}
    for delta in deltas:
        if delta.call is not None:
            name, arguments, identifier = names.setdefault(delta.call, ["", "", ""])
            names[delta.call] = [name + delta.name, arguments + delta.arguments, identifier or delta.id]
    return Answer(
        reasoning="".join(delta.reasoning for delta in deltas),
        text="".join(delta.text for delta in deltas),
        tool_calls=tuple(
            ToolCall(name=name, arguments=arguments, id=identifier) for name, arguments, identifier in names.values()
        ),
        tool_call_error=problem,
    )


def an_example_reads_as_its_call(harness: FormatHarness) -> None:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
        for _, name, _ in harness.examples
    ]
    for text, name, arguments in harness.examples:
        (call,) = harness.form.parse(text, tools).tool_calls
        assert (call.name, json.loads(call.arguments)) == (name, arguments)


def any_text_in_any_parts_reads_as_the_whole(harness: FormatHarness) -> None:
    for _ in range(TEXTS):
        text = harness.text()
        assert _read_stream(harness.form, text, TOOLS, harness.random) == harness.form.parse(text, TOOLS), text


def a_call_has_a_name_and_an_object_of_arguments(harness: FormatHarness) -> None:
    for _ in range(TEXTS):
        text = harness.text()
        for call in harness.form.parse(text, TOOLS).tool_calls:
            assert call.name, text
            assert isinstance(json.loads(call.arguments), dict), text


def without_tools_there_is_no_call(harness: FormatHarness) -> None:
    for _ in range(TEXTS):
        text = harness.text()
        assert harness.form.parse(text, ()).tool_calls == (), text


def a_call_can_be_forced_or_is_refused_by_field(harness: FormatHarness) -> None:
    try:
        constraint = harness.form.constraint(TOOLS, parallel=False)
    except RequestError as error:
        assert error.field == "tools"
    else:
        assert constraint.kind == "lark"
        assert constraint.text


CASES: tuple[Case, ...] = (
    an_example_reads_as_its_call,
    any_text_in_any_parts_reads_as_the_whole,
    a_call_has_a_name_and_an_object_of_arguments,
    without_tools_there_is_no_call,
    a_call_can_be_forced_or_is_refused_by_field,
)
