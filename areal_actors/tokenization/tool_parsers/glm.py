"""GLM-4.5 and later: the name right after `<tool_call>`, then key-value pairs; strings are unquoted, other values JSON.

A value cannot contain `</arg_value>` or `</tool_call>`: a call ends at the first `</tool_call>`.
"""

from __future__ import annotations

import re

from areal_actors.tokenization.tool_parsers.base import ToolCall
from areal_actors.tokenization.tool_parsers.grammar import Grammar, alternatives
from areal_actors.tokenization.tool_parsers.json_calls import check_declared
from areal_actors.tokenization.tool_parsers.syntax import DeclaredTools, IncompleteCall, MalformedCall, ParsedCalls
from areal_actors.tokenization.tool_parsers.typed_values import argument_schemas, arguments_grammar, arguments_json, value_grammar

OPENING, CLOSING = "<tool_call>", "</tool_call>"
NAME = re.compile(r"[^<]*")
ARGUMENT = re.compile(r"<arg_key>([^<]*)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)


class GlmCalls:
    """A name, keys and values between two delimiters."""

    openings: tuple[str, ...] = (OPENING,)
    bare = ""
    closing = CLOSING
    newlines = 1
    leading_newlines = 1

    def read(self, text: str, at: int, declared: DeclaredTools, *, final: bool) -> ParsedCalls:  # noqa: ARG002 - the result does not depend on later text
        """Parse one call."""
        start = at + len(OPENING)
        end = text.find(CLOSING, start)
        if end < 0:
            raise IncompleteCall
        body = text[start:end]
        head = NAME.match(body)
        name = head[0].strip() if head else ""
        check_declared(name, declared, start)
        arguments = arguments_json(parse_arguments(body, len(head[0]) if head else 0, start), declared[name])
        return ParsedCalls(end + len(CLOSING), (ToolCall(name=name, arguments=arguments),))

    def grammar(self, grammar: Grammar, declared: DeclaredTools, *, parallel: bool) -> str:
        """Return a grammar of calls as the templates render them."""
        bodies = []
        for name, parameters in declared.items():
            written = {
                key: " ".join(
                    [
                        grammar.delimiter("<arg_key>"),
                        grammar.literal(key),
                        grammar.delimiter("</arg_key>"),
                        grammar.literal("\n"),
                        grammar.delimiter("<arg_value>"),
                        value_grammar(grammar, schema, parameters, "</arg_value>", before="", without=CLOSING),
                        grammar.literal("\n"),
                    ]
                )
                for key, schema in argument_schemas(parameters).items()
            }
            bodies.append(f"{grammar.literal(name + chr(10))} {arguments_grammar(parameters, written)}")
        call = grammar.rule(f"{grammar.delimiter(OPENING)} {alternatives(bodies)} {grammar.delimiter(CLOSING)}")
        return grammar.repeated(call, grammar.literal("\n"), parallel=parallel)


def parse_arguments(body: str, at: int, position: int) -> dict[str, str]:
    """Return the unparsed values by key.

    Raises:
        MalformedCall: there is other text between keys and values, or a key occurs twice.
    """
    written: dict[str, str] = {}
    while at < len(body):
        argument = ARGUMENT.match(body, at)
        if argument is None:
            raise MalformedCall("expected only <arg_key>KEY</arg_key> and <arg_value>VALUE</arg_value> after its name", position)
        key = argument[1].strip()
        if key in written:
            raise MalformedCall(f"argument {key!r} occurs twice", position)
        written[key] = argument[2]
        at = argument.end()
    return written
