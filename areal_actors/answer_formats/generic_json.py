"""For templates that show tools and say nothing of calls: a JSON object, or a list, as the whole answer or in a ```json fence."""

from __future__ import annotations

from areal_actors.answer_formats.grammar import Grammar, alternatives
from areal_actors.answer_formats.hermes import json_head
from areal_actors.answer_formats.json_calls import Keys, expect, read_call, read_calls, skip_space
from areal_actors.answer_formats.llama3 import looks_like_call
from areal_actors.answer_formats.syntax import Block, Declared, Incomplete

FENCE, END_OF_FENCE = "```json", "```"
KEYS = Keys(arguments=("arguments", "parameters"), others=("id", "type"))


class GenericJsonCalls:
    """One object or a list of them."""

    marks: tuple[str, ...] = (FENCE,)
    bare = "{["
    closing = ""
    newlines = 1
    leading = 0

    def read(self, text: str, at: int, declared: Declared, *, final: bool) -> Block:
        """Read the calls; other JSON is none and no mistake."""
        fenced = text.startswith(FENCE, at)
        start = skip_space(text, at + len(FENCE)) if fenced else at
        first = skip_space(text, start + 1) if text.startswith("[", start) else start
        if first == len(text) and not final:
            raise Incomplete
        if not looks_like_call(text, first, KEYS, final=final):
            return Block(at + 1)
        if first > start:
            calls, end = read_calls(text, start, declared, KEYS)
        else:
            call, end = read_call(text, start, declared, KEYS)
            calls = (call,)
        return Block(expect(text, skip_space(text, end), END_OF_FENCE) if fenced else end, calls)

    def grammar(self, grammar: Grammar, declared: Declared, *, parallel: bool) -> str:
        """One object, or if `parallel` a list."""
        objects = [f'{grammar.literal(json_head(name))} {grammar.arguments(parameters)} "}}"' for name, parameters in declared.items()]
        call = grammar.rule(alternatives(objects))
        return f'("[" {grammar.repeated(call, grammar.literal(", "), parallel=True)} "]")' if parallel else call
