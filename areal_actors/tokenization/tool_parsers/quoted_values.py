"""Arguments as Gemma 4 writes them: an object without quotes around keys, and strings between two equal delimiters."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from areal_actors.tokenization.tool_parsers.grammar import Grammar
from areal_actors.tokenization.tool_parsers.json_calls import MAX_DEPTH, skip_space
from areal_actors.tokenization.tool_parsers.syntax import IncompleteCall, MalformedCall
from areal_actors.tokenization.tool_parsers.tagged_formats import argument_schemas

KEY = re.compile(r"\s*([^\s:{}\[\],<>]+)\s*:")
PARTIAL_KEY = re.compile(r"\s*[^\s:{}\[\],<>]*\s*\Z")
SCALAR = re.compile(r"[^\s,{}\[\]<]+")
CONSTANTS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,299})(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


class QuotedValues(NamedTuple):
    """Delimiter of strings; the object itself is between `{` and `}`."""

    quote: str

    @property
    def delimiters(self) -> tuple[str, ...]:
        """All delimiters."""
        return (self.quote,)

    def read(self, text: str, at: int) -> tuple[str, int]:
        """Parse the object that begins here; returns its JSON and its end.

        Raises:
            MalformedCall: this is not such an object.
            IncompleteCall: the text ends within it.
        """
        position = skip_space(text, at)
        if position == len(text):
            raise IncompleteCall
        if text[position] != "{":
            raise MalformedCall(f"expected {{, found {text[position]!r}", position)
        return self._object(text, position, 0)

    def _value(self, text: str, at: int, depth: int) -> tuple[str, int]:
        at = skip_space(text, at)
        if depth > MAX_DEPTH:
            raise MalformedCall(f"its arguments are nested deeper than {MAX_DEPTH} levels", at)
        if text.startswith("{", at):
            return self._object(text, at, depth)
        if text.startswith("[", at):
            return self._items(text, at, depth)
        if text.startswith(self.quote, at):
            start = at + len(self.quote)
            end = text.find(self.quote, start)
            if end < 0:
                raise IncompleteCall
            return json.dumps(text[start:end], ensure_ascii=False), end + len(self.quote)
        match = SCALAR.match(text, at)
        if match is None or match.end() == len(text):
            if at == len(text) or match is not None or self.quote.startswith(text[at:]):
                raise IncompleteCall
            raise MalformedCall(f"expected a value, found {text[at : at + 1]!r}", at)
        if match[0] in CONSTANTS:
            return CONSTANTS[match[0]], match.end()
        if not NUMBER.fullmatch(match[0]):
            raise MalformedCall(f"{match[0][:40]!r} is not a value", at)
        return match[0], match.end()

    def _object(self, text: str, at: int, depth: int) -> tuple[str, int]:
        members: dict[str, str] = {}
        position = skip_space(text, at + 1)
        while not text.startswith("}", position):
            key = KEY.match(text, position)
            if key is None:
                if PARTIAL_KEY.match(text, position):
                    raise IncompleteCall
                raise MalformedCall("expected a key and a colon", position)
            if key[1] in members:
                raise MalformedCall(f"argument {key[1]!r} occurs twice", position)
            members[key[1]], position = self._value(text, key.end(), depth + 1)
            position = _after_item(text, position, "}")
        pairs = [f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in members.items()]
        return "{" + ", ".join(pairs) + "}", position + 1

    def _items(self, text: str, at: int, depth: int) -> tuple[str, int]:
        values: list[str] = []
        position = skip_space(text, at + 1)
        while not text.startswith("]", position):
            value, position = self._value(text, position, depth + 1)
            values.append(value)
            position = _after_item(text, position, "]")
        return f"[{', '.join(values)}]", position + 1

    def grammar(self, grammar: Grammar, parameters: Mapping[str, Any]) -> str:
        """Return an expression for an object with the arguments of this schema, sorted by name, as templates do."""
        schemas = dict(sorted(argument_schemas(parameters).items()))
        needed = parameters.get("required")
        required = [key for key in schemas if isinstance(needed, list) and key in needed]
        optional = [key for key in schemas if key not in required]
        pairs = {
            key: f"{grammar.literal(f'{key}:')} {self._value_grammar(grammar, schema)}"
            for key, schema in schemas.items()
        }
        comma = grammar.literal(",")
        if required:
            body = [
                f" {comma} ".join(pairs[key] for key in required),
                *[f"({comma} {pairs[key]})?" for key in optional],
            ]
            return f'"{{" {" ".join(body)} "}}"'
        starts = [
            " ".join([pairs[key], *[f"({comma} {pairs[later]})?" for later in optional[place:]]])
            for place, key in enumerate(optional, 1)
        ]
        return f'"{{" ({" | ".join(starts)})? "}}"' if starts else '"{}"'

    def _value_grammar(self, grammar: Grammar, schema: object) -> str:
        kind = schema.get("type") if isinstance(schema, Mapping) else None
        values = schema.get("enum") if isinstance(schema, Mapping) else None
        quote = grammar.text(self.quote)
        if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
            return f"{quote} ({' | '.join(grammar.literal(value) for value in values)}) {quote}"
        if kind == "string":
            return f"{quote} {grammar.until(self.quote)}"
        if kind in ("integer", "number", "boolean", "null"):
            return grammar.schema({"type": kind})
        return self._any_value(grammar)

    def _any_value(self, grammar: Grammar) -> str:
        """Return an expression for a value of any type."""
        string = f"{grammar.text(self.quote)} {grammar.until(self.quote)}"
        scalar = '"true" | "false" | "null" | /-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,20})?/'
        pair = f'/[A-Za-z0-9_\\-]{{1,64}}/ ":" {ANY}'
        grammar.define(ANY, f'{string} | {scalar} | "{{" ({pair} ("," {pair})*)? "}}" | "[" ({ANY} ("," {ANY})*)? "]"')
        return ANY


ANY = "quoted_value"
"""Name of the rule for a value of any type, which refers to itself."""


def _after_item(text: str, at: int, closing: str) -> int:
    """Return the position of the next item or of the closing bracket."""
    position = skip_space(text, at)
    if position == len(text):
        raise IncompleteCall
    if text[position] == ",":
        return skip_space(text, position + 1)
    if text[position] != closing:
        raise MalformedCall(f"expected ',' or {closing!r}, found {text[position]!r}", position)
    return position
