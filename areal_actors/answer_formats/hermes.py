"""Hermes, Qwen2.5, Qwen3: `<tool_call>`, an object with `name` and `arguments`, `</tool_call>`."""

from __future__ import annotations

import json

from areal_actors.answer_formats.grammar import Grammar, alternatives
from areal_actors.answer_formats.json_calls import Keys, expect, read_call, skip_space
from areal_actors.answer_formats.syntax import Block, Declared, Incomplete

OPENING, CLOSING = "<tool_call>", "</tool_call>"
KEYS = Keys()


class HermesCalls:
    """One object between two marks; the closing mark may stand within the object's strings."""

    marks: tuple[str, ...] = (OPENING,)
    bare = ""
    closing = CLOSING
    newlines = 1
    leading = 0

    def read(self, text: str, at: int, declared: Declared, *, final: bool) -> Block:
        """Read one call."""
        start = at + len(OPENING)
        if not final and text.find(CLOSING, start) < 0:
            raise Incomplete
        call, end = read_call(text, skip_space(text, start), declared, KEYS)
        return Block(expect(text, skip_space(text, end), CLOSING), (call,))

    def grammar(self, grammar: Grammar, declared: Declared, *, parallel: bool) -> str:
        """Calls as the templates render them, one a line."""
        objects = [
            f"{grammar.literal(chr(10) + json_head(name))} {grammar.arguments(parameters)} {grammar.literal('}' + chr(10))}"
            for name, parameters in declared.items()
        ]
        call = grammar.rule(f"{grammar.mark(OPENING)} {alternatives(objects)} {grammar.mark(CLOSING)}")
        return grammar.repeated(call, grammar.literal("\n"), parallel=parallel)


def json_head(name: str, arguments: str = "arguments") -> str:
    """A call's object up to its arguments."""
    return f'{{"name": {json.dumps(name)}, "{arguments}": '
