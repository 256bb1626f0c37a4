"""Llama 3.1 to 3.3: an object with `name` and `parameters` as the whole answer, or after `<|python_tag|>`; more follow a `;`."""

from __future__ import annotations

import re

from areal_actors.tokenization.tool_parsers.base import ToolCall
from areal_actors.tokenization.tool_parsers.grammar import Grammar, alternatives
from areal_actors.tokenization.tool_parsers.hermes import json_head
from areal_actors.tokenization.tool_parsers.json_calls import CallKeys, read_call, skip_space
from areal_actors.tokenization.tool_parsers.syntax import DeclaredTools, IncompleteCall, MalformedCall, ParsedCalls

TAG = "<|python_tag|>"
KEYS = CallKeys(arguments=("parameters", "arguments"), others=("type",))
FIRST_KEY = re.compile(r'\{[ \t\n\r]*"([^"]*)"')
PARTIAL_KEY = re.compile(r'\{[ \t\n\r]*(?:"[^"]{0,12})?\Z')
"""An object whose first key is incomplete; no key of a call is longer."""


class Llama3Calls:
    """Objects separated by semicolons."""

    openings: tuple[str, ...] = (TAG,)
    bare = "{"
    closing = ""
    newlines = 0
    leading_newlines = 0

    def read(self, text: str, at: int, declared: DeclaredTools, *, final: bool) -> ParsedCalls:
        """Parse all consecutive calls."""
        tagged = text.startswith(TAG, at)
        start = skip_space(text, at + len(TAG)) if tagged else at
        if not tagged and not looks_like_call(text, at, KEYS, final=final):
            return ParsedCalls(at + 1)
        call, end = read_call(text, start, declared, KEYS)
        calls = [call]
        while True:
            following = skip_space(text, end)
            if following == len(text) and not final:
                raise IncompleteCall
            if not text.startswith(";", following):
                return ParsedCalls(end, tuple(calls))
            more, end, problem = read_next_call(text, skip_space(text, following + 1), declared, end, final=final)
            calls += more
            if not more:
                return ParsedCalls(end, tuple(calls), problem)

    def grammar(self, grammar: Grammar, declared: DeclaredTools, *, parallel: bool) -> str:
        """Return a grammar of calls as the template renders them."""
        objects = [
            f'{grammar.literal(json_head(name, "parameters"))} {grammar.arguments(parameters)} "}}"'
            for name, parameters in declared.items()
        ]
        call = grammar.rule(alternatives(objects))
        return grammar.repeated(call, grammar.literal("; "), parallel=parallel)


def read_next_call(text: str, at: int, declared: DeclaredTools, end: int, *, final: bool) -> tuple[list[ToolCall], int, str]:
    """Parse the call after a semicolon; returns it and its end, or if there is none the previous `end` and the parse error.

    Raises:
        IncompleteCall: later text may complete the call.
    """
    try:
        call, position = read_call(text, at, declared, KEYS)
    except MalformedCall as error:
        return [], end, f"a tool call does not parse: {error}" if text.startswith("{", at) else ""
    except IncompleteCall:
        if not final:
            raise
        return [], end, "a tool call does not parse: it is incomplete" if text.startswith("{", at) else ""
    return [call], position, ""


def looks_like_call(text: str, at: int, keys: CallKeys, *, final: bool) -> bool:
    """True if the first key of the object is a key of a call; an answer may be other JSON.

    Raises:
        IncompleteCall: the text ends within its first key.
    """
    key = FIRST_KEY.match(text, at)
    if key is None and not final and PARTIAL_KEY.match(text, at):
        raise IncompleteCall
    return key is not None and key[1] in ("name", *keys.arguments, *keys.others)
