"""Qwen3-Coder, Qwen3.5, Nemotron 3: marks for the function and each of its parameters, values as plain text.

A value cannot hold `</parameter>` or `</tool_call>`: the format has no way to write them. The text up to the first
`</tool_call>` is the whole call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from areal_actors.answer_formats.base import ToolCall
from areal_actors.answer_formats.grammar import Grammar, alternatives
from areal_actors.answer_formats.json_calls import check_declared
from areal_actors.answer_formats.syntax import Block, Declared, Incomplete, Malformed
from areal_actors.answer_formats.typed_values import arguments_grammar, arguments_json, properties_of, types_of, value_grammar

OPENING, CLOSING = "<tool_call>", "</tool_call>"
FUNCTION = re.compile(r"\s*<function=([^>\n]+)>")
END_OF_FUNCTION = "</function>"
LINE = "\n"
PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>(.*?)</parameter>", re.DOTALL)


class QwenCoderCalls:
    """One function between two marks."""

    marks: tuple[str, ...] = (OPENING,)
    bare = ""
    closing = CLOSING
    newlines = 2
    leading = 0

    def read(self, text: str, at: int, declared: Declared, *, final: bool) -> Block:  # noqa: ARG002 - nothing hangs on what follows
        """Read one call."""
        start = at + len(OPENING)
        end = text.find(CLOSING, start)
        if end < 0:
            raise Incomplete
        body = text[start:end].rstrip()
        function = FUNCTION.match(body)
        if function is None or not body.endswith(END_OF_FUNCTION, function.end()):
            raise Malformed("<function=NAME> and </function> should stand right inside its marks", start)
        name = function[1].strip()
        check_declared(name, declared, start)
        arguments = arguments_json(written_in(body[function.end() : -len(END_OF_FUNCTION)].strip(), start), declared[name])
        return Block(end + len(CLOSING), (ToolCall(name=name, arguments=arguments),))

    def grammar(self, grammar: Grammar, declared: Declared, *, parallel: bool) -> str:
        """Calls as the templates render them."""
        functions = []
        for name, parameters in declared.items():
            written = {key: parameter_grammar(grammar, key, schema, parameters) for key, schema in properties_of(parameters).items()}
            functions.append(f"{grammar.literal(f'{LINE}<function={name}>{LINE}')} {arguments_grammar(parameters, written)}")
        end = grammar.literal("</function>\n")
        call = grammar.rule(f"{grammar.mark(OPENING)} {alternatives(functions)} {end} {grammar.mark(CLOSING)}")
        return grammar.repeated(call, grammar.literal("\n"), parallel=parallel)


def written_in(text: str, position: int) -> dict[str, str]:
    """Values by parameter, as they were written, without the line break on either side.

    Raises:
        Malformed: something else stands between the parameters, or one comes twice.
    """
    written: dict[str, str] = {}
    at = 0
    while at < len(text):
        parameter = PARAMETER.match(text, at)
        if parameter is None:
            raise Malformed("<parameter=KEY>, a value and </parameter> should be all that stands inside <function=…>", position)
        key = parameter[1]
        if key in written:
            raise Malformed(f"parameter {key!r} comes twice", position)
        written[key] = parameter[2].removeprefix("\n").removesuffix("\n")
        at = parameter.end()
    return written


def parameter_grammar(grammar: Grammar, key: str, schema: object, root: Mapping[str, Any]) -> str:
    """One parameter with its marks; the templates write booleans as Python does."""
    if types_of(schema, root) == {"boolean"}:
        value = rf'("True" | "False") {grammar.literal(LINE)} {grammar.mark("</parameter>")}'
    else:
        value = value_grammar(grammar, schema, root, "</parameter>", before=LINE, without=CLOSING)
    return f"{grammar.literal(f'<parameter={key}>{LINE}')} {value} {grammar.literal(LINE)}"
