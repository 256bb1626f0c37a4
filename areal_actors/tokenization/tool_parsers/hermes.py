"""Hermes, Qwen2.5, Qwen3: `<tool_call>`, an object with `name` and `arguments`, `</tool_call>`."""

from __future__ import annotations

import json

from areal_actors.tokenization.tool_parsers.grammar import Grammar, alternatives
from areal_actors.tokenization.tool_parsers.json_calls import CallKeys, expect, read_call, skip_space
from areal_actors.tokenization.tool_parsers.syntax import DeclaredTools, IncompleteCall, ParsedCalls

OPENING, CLOSING = "<tool_call>", "</tool_call>"
KEYS = CallKeys()


class HermesCalls:
    """One object between two delimiters; the object's strings may contain the closing one."""

    openings: tuple[str, ...] = (OPENING,)
    bare = ""
    closing = CLOSING
    newlines = 1
    leading_newlines = 0

    def read(self, text: str, at: int, declared: DeclaredTools, *, final: bool) -> ParsedCalls:
        """Parse one call."""
        start = at + len(OPENING)
        if not final and text.find(CLOSING, start) < 0:
            raise IncompleteCall
        call, end = read_call(text, skip_space(text, start), declared, KEYS)
        return ParsedCalls(expect(text, skip_space(text, end), CLOSING), (call,))

    def grammar(self, grammar: Grammar, declared: DeclaredTools, *, parallel: bool) -> str:
        """Return a grammar of calls as the templates render them, one per line."""
        objects = [
            f"{grammar.literal(chr(10) + json_head(name))} {grammar.arguments(parameters)} {grammar.literal('}' + chr(10))}"
            for name, parameters in declared.items()
        ]
        call = grammar.rule(f"{grammar.delimiter(OPENING)} {alternatives(objects)} {grammar.delimiter(CLOSING)}")
        return grammar.repeated(call, grammar.literal("\n"), parallel=parallel)


def json_head(name: str, arguments: str = "arguments") -> str:
    """Return the beginning of a call's JSON object, up to its arguments."""
    return f'{{"name": {json.dumps(name)}, "{arguments}": '
