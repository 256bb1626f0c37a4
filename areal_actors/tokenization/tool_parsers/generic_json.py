"""For templates that list tools without a call syntax: a JSON object, or a list, as the whole answer or in a ```json fence."""

from __future__ import annotations

from areal_actors.tokenization.tool_parsers.grammar import Grammar, alternatives
from areal_actors.tokenization.tool_parsers.hermes import json_head
from areal_actors.tokenization.tool_parsers.json_calls import CallKeys, expect, read_call, read_calls, skip_space
from areal_actors.tokenization.tool_parsers.llama3 import looks_like_call
from areal_actors.tokenization.tool_parsers.syntax import DeclaredTools, IncompleteCall, ParsedCalls

FENCE, END_OF_FENCE = "```json", "```"
KEYS = CallKeys(arguments=("arguments", "parameters"), others=("id", "type"))


class GenericJsonCalls:
    """One object or a list of them."""

    openings: tuple[str, ...] = (FENCE,)
    bare = "{["
    closing = ""
    newlines = 1
    leading_newlines = 0

    def read(self, text: str, at: int, declared: DeclaredTools, *, final: bool) -> ParsedCalls:
        """Parse the calls; JSON that is not a call is text, not an error."""
        fenced = text.startswith(FENCE, at)
        start = skip_space(text, at + len(FENCE)) if fenced else at
        first = skip_space(text, start + 1) if text.startswith("[", start) else start
        if first == len(text) and not final:
            raise IncompleteCall
        if not looks_like_call(text, first, KEYS, final=final):
            return ParsedCalls(at + 1)
        if first > start:
            calls, end = read_calls(text, start, declared, KEYS)
        else:
            call, end = read_call(text, start, declared, KEYS)
            calls = (call,)
        return ParsedCalls(expect(text, skip_space(text, end), END_OF_FENCE) if fenced else end, calls)

    def grammar(self, grammar: Grammar, declared: DeclaredTools, *, parallel: bool) -> str:
        """Return a grammar of one object, or if `parallel` of a list."""
        objects = [f'{grammar.literal(json_head(name))} {grammar.arguments(parameters)} "}}"' for name, parameters in declared.items()]
        call = grammar.rule(alternatives(objects))
        return f'("[" {grammar.repeated(call, grammar.literal(", "), parallel=True)} "]")' if parallel else call
