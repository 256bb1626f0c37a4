"""Qwen3-Coder, Qwen3.5, Nemotron 3: delimiters around the function and each of its parameters, values as plain text.

A value cannot contain `</parameter>` or `</tool_call>`: the format has no escapes. A call ends at the first `</tool_call>`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from areal_actors.tokenization.tool_parsers.base import ToolCall
from areal_actors.tokenization.tool_parsers.grammar import Grammar, alternatives
from areal_actors.tokenization.tool_parsers.json_calls import check_declared
from areal_actors.tokenization.tool_parsers.syntax import DeclaredTools, IncompleteCall, MalformedCall, ParsedCalls
from areal_actors.tokenization.tool_parsers.typed_values import (
    argument_schemas,
    arguments_grammar,
    arguments_json,
    json_types,
    value_grammar,
)

OPENING, CLOSING = "<tool_call>", "</tool_call>"
FUNCTION = re.compile(r"\s*<function=([^>\n]+)>")
END_OF_FUNCTION = "</function>"
LINE = "\n"
PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>(.*?)</parameter>", re.DOTALL)


class QwenCoderCalls:
    """One function between two delimiters."""

    openings: tuple[str, ...] = (OPENING,)
    bare = ""
    closing = CLOSING
    newlines = 2
    leading_newlines = 0

    def read(self, text: str, at: int, declared: DeclaredTools, *, final: bool) -> ParsedCalls:  # noqa: ARG002 - the result does not depend on later text
        """Parse one call."""
        start = at + len(OPENING)
        end = text.find(CLOSING, start)
        if end < 0:
            raise IncompleteCall
        body = text[start:end].rstrip()
        function = FUNCTION.match(body)
        if function is None or not body.endswith(END_OF_FUNCTION, function.end()):
            raise MalformedCall("expected <function=NAME> and </function> right inside its delimiters", start)
        name = function[1].strip()
        check_declared(name, declared, start)
        arguments = arguments_json(parse_parameters(body[function.end() : -len(END_OF_FUNCTION)].strip(), start), declared[name])
        return ParsedCalls(end + len(CLOSING), (ToolCall(name=name, arguments=arguments),))

    def grammar(self, grammar: Grammar, declared: DeclaredTools, *, parallel: bool) -> str:
        """Return a grammar of calls as the templates render them."""
        functions = []
        for name, parameters in declared.items():
            written = {key: parameter_grammar(grammar, key, schema, parameters) for key, schema in argument_schemas(parameters).items()}
            functions.append(f"{grammar.literal(f'{LINE}<function={name}>{LINE}')} {arguments_grammar(parameters, written)}")
        end = grammar.literal("</function>\n")
        call = grammar.rule(f"{grammar.delimiter(OPENING)} {alternatives(functions)} {end} {grammar.delimiter(CLOSING)}")
        return grammar.repeated(call, grammar.literal("\n"), parallel=parallel)


def parse_parameters(text: str, position: int) -> dict[str, str]:
    """Return the unparsed values by parameter, without the line break on either side.

    Raises:
        MalformedCall: there is other text between the parameters, or one occurs twice.
    """
    written: dict[str, str] = {}
    at = 0
    while at < len(text):
        parameter = PARAMETER.match(text, at)
        if parameter is None:
            raise MalformedCall("expected only <parameter=KEY>, a value and </parameter> inside <function=…>", position)
        key = parameter[1]
        if key in written:
            raise MalformedCall(f"parameter {key!r} occurs twice", position)
        written[key] = parameter[2].removeprefix("\n").removesuffix("\n")
        at = parameter.end()
    return written


def parameter_grammar(grammar: Grammar, key: str, schema: object, root: Mapping[str, Any]) -> str:
    """Return an expression for one parameter with its delimiters; the templates write booleans as Python does."""
    if json_types(schema, root) == {"boolean"}:
        value = rf'("True" | "False") {grammar.literal(LINE)} {grammar.delimiter("</parameter>")}'
    else:
        value = value_grammar(grammar, schema, root, "</parameter>", before=LINE, without=CLOSING)
    return f"{grammar.literal(f'<parameter={key}>{LINE}')} {value} {grammar.literal(LINE)}"
