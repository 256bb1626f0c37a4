"""Llama 3.1 to 3.3: an object with `name` and `parameters` as the whole answer, or after `<|python_tag|>`; more follow a `;`."""

from __future__ import annotations

import re

from areal_actors.answer_formats.base import ToolCall
from areal_actors.answer_formats.grammar import Grammar, alternatives
from areal_actors.answer_formats.hermes import json_head
from areal_actors.answer_formats.json_calls import Keys, read_call, skip_space
from areal_actors.answer_formats.syntax import Block, Declared, Incomplete, Malformed

TAG = "<|python_tag|>"
KEYS = Keys(arguments=("parameters", "arguments"), others=("type",))
FIRST_KEY = re.compile(r'\{[ \t\n\r]*"([^"]*)"')
MAYBE_KEY = re.compile(r'\{[ \t\n\r]*(?:"[^"]{0,12})?\Z')
"""An object that has not come to the end of its first key, and the longest key of a call is not longer."""


class Llama3Calls:
    """Objects with a semicolon between them."""

    marks: tuple[str, ...] = (TAG,)
    bare = "{"
    closing = ""
    newlines = 0
    leading = 0

    def read(self, text: str, at: int, declared: Declared, *, final: bool) -> Block:
        """Read all calls that follow one another."""
        tagged = text.startswith(TAG, at)
        start = skip_space(text, at + len(TAG)) if tagged else at
        if not tagged and not looks_like_call(text, at, KEYS, final=final):
            return Block(at + 1)
        call, end = read_call(text, start, declared, KEYS)
        calls = [call]
        while True:
            following = skip_space(text, end)
            if following == len(text) and not final:
                raise Incomplete
            if not text.startswith(";", following):
                return Block(end, tuple(calls))
            more, end, problem = read_another(text, skip_space(text, following + 1), declared, end, final=final)
            calls += more
            if not more:
                return Block(end, tuple(calls), problem)

    def grammar(self, grammar: Grammar, declared: Declared, *, parallel: bool) -> str:
        """Calls as the template renders them."""
        objects = [
            f'{grammar.literal(json_head(name, "parameters"))} {grammar.arguments(parameters)} "}}"'
            for name, parameters in declared.items()
        ]
        call = grammar.rule(alternatives(objects))
        return grammar.repeated(call, grammar.literal("; "), parallel=parallel)


def read_another(text: str, at: int, declared: Declared, end: int, *, final: bool) -> tuple[list[ToolCall], int, str]:
    """The next call and its end; none, the last call's `end` and why, if what follows the semicolon is no call.

    Raises:
        Incomplete: that is not known yet.
    """
    try:
        call, position = read_call(text, at, declared, KEYS)
    except Malformed as error:
        return [], end, f"a tool call does not parse: {error}" if text.startswith("{", at) else ""
    except Incomplete:
        if not final:
            raise
        return [], end, "a tool call does not parse: it is not complete" if text.startswith("{", at) else ""
    return [call], position, ""


def looks_like_call(text: str, at: int, keys: Keys, *, final: bool) -> bool:
    """Whether the object that begins here starts with a key of a call; an answer may be other JSON.

    Raises:
        Incomplete: its first key is not there yet.
    """
    key = FIRST_KEY.match(text, at)
    if key is None and not final and MAYBE_KEY.match(text, at):
        raise Incomplete
    return key is not None and key[1] in ("name", *keys.arguments, *keys.others)
