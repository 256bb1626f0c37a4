"""GLM-4.5 and later: the name right behind `<tool_call>`, then a key and a value at a time; strings as they are, the rest JSON.

A value cannot hold `</arg_value>` or `</tool_call>`: the text up to the first `</tool_call>` is the whole call.
"""

from __future__ import annotations

import re

from areal_actors.answer_formats.base import ToolCall
from areal_actors.answer_formats.grammar import Grammar, alternatives
from areal_actors.answer_formats.json_calls import check_declared
from areal_actors.answer_formats.syntax import Block, Declared, Incomplete, Malformed
from areal_actors.answer_formats.typed_values import arguments_grammar, arguments_json, properties_of, value_grammar

OPENING, CLOSING = "<tool_call>", "</tool_call>"
NAME = re.compile(r"[^<]*")
ARGUMENT = re.compile(r"<arg_key>([^<]*)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)


class GlmCalls:
    """A name, keys and values between two marks."""

    marks: tuple[str, ...] = (OPENING,)
    bare = ""
    closing = CLOSING
    newlines = 1
    leading = 1

    def read(self, text: str, at: int, declared: Declared, *, final: bool) -> Block:  # noqa: ARG002 - nothing hangs on what follows
        """Read one call."""
        start = at + len(OPENING)
        end = text.find(CLOSING, start)
        if end < 0:
            raise Incomplete
        body = text[start:end]
        head = NAME.match(body)
        name = head[0].strip() if head else ""
        check_declared(name, declared, start)
        arguments = arguments_json(written_in(body, len(head[0]) if head else 0, start), declared[name])
        return Block(end + len(CLOSING), (ToolCall(name=name, arguments=arguments),))

    def grammar(self, grammar: Grammar, declared: Declared, *, parallel: bool) -> str:
        """Calls as the templates render them."""
        bodies = []
        for name, parameters in declared.items():
            written = {
                key: " ".join(
                    [
                        grammar.mark("<arg_key>"),
                        grammar.literal(key),
                        grammar.mark("</arg_key>"),
                        grammar.literal("\n"),
                        grammar.mark("<arg_value>"),
                        value_grammar(grammar, schema, parameters, "</arg_value>", before="", without=CLOSING),
                        grammar.literal("\n"),
                    ]
                )
                for key, schema in properties_of(parameters).items()
            }
            bodies.append(f"{grammar.literal(name + chr(10))} {arguments_grammar(parameters, written)}")
        call = grammar.rule(f"{grammar.mark(OPENING)} {alternatives(bodies)} {grammar.mark(CLOSING)}")
        return grammar.repeated(call, grammar.literal("\n"), parallel=parallel)


def written_in(body: str, at: int, position: int) -> dict[str, str]:
    """Values by key, as they were written.

    Raises:
        Malformed: something else stands between keys and values, or a key comes twice.
    """
    written: dict[str, str] = {}
    while at < len(body):
        argument = ARGUMENT.match(body, at)
        if argument is None:
            raise Malformed("<arg_key>KEY</arg_key> and <arg_value>VALUE</arg_value> should be all that follows its name", position)
        key = argument[1].strip()
        if key in written:
            raise Malformed(f"argument {key!r} comes twice", position)
        written[key] = argument[2]
        at = argument.end()
    return written
