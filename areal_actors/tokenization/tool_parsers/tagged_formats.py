"""Formats that write each argument between tags: GLM-4.5 and later; Qwen3-Coder, Qwen3.5 and Nemotron 3.

Strings are plain text without escapes, so a value cannot contain the tag that ends it, nor `</tool_call>`: a call ends at the
first one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from areal_actors.tokenization.tool_parsers.base import DeclaredTools, ToolCall
from areal_actors.tokenization.tool_parsers.grammar import Grammar
from areal_actors.tokenization.tool_parsers.json_calls import check_declared
from areal_actors.tokenization.tool_parsers.syntax import CallSyntax, MalformedCall, ParsedCalls, enclosed_text
from areal_actors.tokenization.tool_parsers.typed_values import arguments_grammar, arguments_json, json_types, value_grammar

OPENING, CLOSING = "<tool_call>", "</tool_call>"


class Tags(NamedTuple):
    """Tags of a format inside a call's delimiters."""

    call: re.Pattern[str]
    """Matches a whole call; groups: name, arguments."""
    argument: re.Pattern[str]
    """Matches one argument; groups: its name, its value."""
    noun: str
    wrong_call: str
    wrong_argument: str

    def read(self, text: str, at: int, declared: DeclaredTools) -> ParsedCalls:
        """Parse one call."""
        start = at + len(OPENING)
        body, end = enclosed_text(text, start, CLOSING)
        call = self.call.fullmatch(body)
        if call is None:
            raise MalformedCall(self.wrong_call, start)
        name = call[1].strip()
        check_declared(name, declared, start)
        arguments = arguments_json(self._arguments(call[2].strip(), start), declared[name])
        return ParsedCalls(end, (ToolCall(name=name, arguments=arguments),))

    def _arguments(self, text: str, position: int) -> dict[str, str]:
        """Return the unparsed values by name.

        Raises:
            MalformedCall: there is other text between the arguments, or one occurs twice.
        """
        written: dict[str, str] = {}
        at = 0
        while at < len(text):
            argument = self.argument.match(text, at)
            if argument is None:
                raise MalformedCall(self.wrong_argument, position)
            if argument[1] in written:
                raise MalformedCall(f"{self.noun} {argument[1]!r} occurs twice", position)
            written[argument[1]] = argument[2]
            at = argument.end()
        return written


GLM_TAGS = Tags(
    re.compile(r"([^<]*)(.*)", re.DOTALL),
    re.compile(r"<arg_key>\s*([^<]*?)\s*</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL),
    noun="argument",
    wrong_call="",
    wrong_argument="expected only <arg_key>KEY</arg_key> and <arg_value>VALUE</arg_value> after its name",
)
QWEN_CODER_TAGS = Tags(
    re.compile(r"\s*<function=([^>\n]+)>(.*)</function>\s*", re.DOTALL),
    re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL),
    noun="parameter",
    wrong_call="expected <function=NAME> and </function> right inside its delimiters",
    wrong_argument="expected only <parameter=KEY>, a value and </parameter> inside <function=…>",
)


def glm_body(grammar: Grammar, name: str, parameters: Mapping[str, Any]) -> str:
    """Return the grammar of a name, then keys and values."""
    line = grammar.literal("\n")

    def argument(key: str, schema: object) -> str:
        tagged = grammar.enclosed(("<arg_key>", "</arg_key>"), grammar.literal(key))
        opening = grammar.delimiter("<arg_value>")
        return f"{tagged} {line} {opening} {value_grammar(grammar, schema, parameters, '</arg_value>', before='', without=CLOSING)} {line}"

    return f"{grammar.literal(f'{name}{chr(10)}')} {arguments_grammar(parameters, argument)}"


def qwen_coder_body(grammar: Grammar, name: str, parameters: Mapping[str, Any]) -> str:
    """Return the grammar of a function with its parameters; the templates write booleans as Python does."""
    line = grammar.literal("\n")

    def argument(key: str, schema: object) -> str:
        if json_types(schema, parameters) == {"boolean"}:
            value = f'("True" | "False") {line} {grammar.delimiter("</parameter>")}'
        else:
            value = value_grammar(grammar, schema, parameters, "</parameter>", before="\n", without=CLOSING)
        return f"{grammar.literal(f'<parameter={key}>{chr(10)}')} {value} {line}"

    head, end = grammar.literal(f"\n<function={name}>\n"), grammar.literal("</function>\n")
    return f"{head} {arguments_grammar(parameters, argument)} {end}"


QWEN_CODER = CallSyntax(
    QWEN_CODER_TAGS.read, (OPENING,), closing=CLOSING, newlines=2, body=qwen_coder_body, around_call=(OPENING, CLOSING), separator="\n"
)
GLM = QWEN_CODER._replace(read=GLM_TAGS.read, newlines=1, leading_newlines=1, body=glm_body)
