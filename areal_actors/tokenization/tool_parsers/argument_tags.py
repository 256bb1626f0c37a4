"""Arguments that are written one by one between delimiters: with attributes, with types, with elements inside.

All of it is data that `learn_tags.py` cuts out of rendered calls. White space between delimiters is ignored; values
keep theirs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from areal_actors.tokenization.tool_parsers.grammar import MARK, Grammar
from areal_actors.tokenization.tool_parsers.json_calls import MAX_DEPTH, expect, skip_space
from areal_actors.tokenization.tool_parsers.pythonic import literal_json
from areal_actors.tokenization.tool_parsers.syntax import IncompleteCall, MalformedCall
from areal_actors.tokenization.tool_parsers.tagged_formats import (
    NUMBER,
    argument_schemas,
    arguments_grammar,
    json_types,
    resolve_reference,
    value_grammar,
    value_json,
)

CDATA, CDATA_END = "<![CDATA[", "]]>"
STRING = frozenset({"string"})
CONSTANTS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}


class ValueHead(NamedTuple):
    """Delimiters before a value."""

    opening: str
    """Before the name; for an item of a list all that precedes its value."""
    end: str = ""
    """Between the name and the value."""
    types: frozenset[str] = frozenset()
    """JSON types of the values that are written with it; empty if it does not depend on the type."""


class ItemTags(NamedTuple):
    """Delimiters of the items of a list."""

    heads: tuple[ValueHead, ...]
    closing: str


class ArgumentTags(NamedTuple):
    """Delimiters of arguments."""

    heads: tuple[ValueHead, ...]
    closing: str
    closing_end: str = ""
    """Rest of the closing delimiter, if the name is repeated in it."""
    separator: str = ""
    """Between two arguments; optional in forced calls."""
    cdata: bool = False
    """True if text with marks is written as CDATA."""
    items: ItemTags | None = None
    """Delimiters in lists, and then objects are written like arguments; None if both are written as JSON."""

    @property
    def delimiters(self) -> tuple[str, ...]:
        """All delimiters."""
        items = self.items or ItemTags((), "")
        heads = [part for head in (*self.heads, *items.heads) for part in (head.opening, head.end)]
        return (*heads, self.closing, self.closing_end, items.closing)

    @property
    def openings(self) -> tuple[str, ...]:
        """Delimiters that open an argument."""
        return tuple(dict.fromkeys(head.opening.strip() for head in self.heads))

    def read(self, text: str, at: int, end: str, parameters: Mapping[str, Any]) -> tuple[str, int]:
        """Parse arguments up to the delimiter `end`; returns their JSON and the position before `end`.

        Raises:
            MalformedCall: there is other text.
            IncompleteCall: the text ends before `end`.
        """
        return _Reader(self, text, parameters).members(at, end, parameters, 0)

    def closing_of(self, name: str) -> str:
        """Return the delimiter after the value of an argument."""
        return f"{self.closing}{name}{self.closing_end}" if self.closing_end else self.closing

    def grammar(self, grammar: Grammar, parameters: Mapping[str, Any]) -> str:
        """Return an expression for arguments as the template renders them."""
        return self._members_grammar(grammar, parameters, parameters)

    def _members_grammar(self, grammar: Grammar, schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
        def argument(key: str, of_key: object) -> str:
            head = _head_for(self.heads, of_key)
            start = grammar.text(f"{head.opening}{key}{head.end}")
            between = f"({grammar.literal(self.separator)})?" if self.separator else ""
            return " ".join(
                filter(None, (between, start, self._value_grammar(grammar, of_key, root, self.closing_of(key))))
            )

        return arguments_grammar(schema, argument)

    def _value_grammar(self, grammar: Grammar, schema: object, root: Mapping[str, Any], closing: str) -> str:
        """Return an expression for a value with its closing delimiter."""
        of_value = _resolve(schema, root)
        types = json_types(schema, root)
        if self.items is not None and types == {"object"} and argument_schemas(of_value):
            return f"{self._members_grammar(grammar, of_value, root)} {grammar.text(closing)}"
        if self.items is not None and types == {"array"}:
            of_item = of_value.get("items", {})
            head = _head_for(self.items.heads, of_item)
            item = f"{grammar.text(head.opening)} {self._value_grammar(grammar, of_item, root, self.items.closing)}"
            return f"({item})* {grammar.text(closing)}"
        written: object = {"type": "string"} if self.items is not None and types & {"object", "array"} else schema
        before, mark, after = _split_closing(closing)
        value = value_grammar(grammar, written, root, mark, before=before, without="")
        if self.cdata and (not types or "string" in types):
            value = (
                f"({grammar.literal(CDATA)} {grammar.until(CDATA_END + mark)} | /[^<&\\n]*/"
                f" {grammar.text(before + mark)})"
            )
        return " ".join(filter(None, (value, grammar.text(after))))


class _Reader(NamedTuple):
    """Reads the arguments of one call."""

    tags: ArgumentTags
    text: str
    root: Mapping[str, Any]
    """Schema of the arguments, in which references are resolved."""

    def members(self, at: int, end: str, schema: Mapping[str, Any], depth: int) -> tuple[str, int]:
        """Parse named values up to the delimiter `end`; returns their JSON and the position before `end`."""
        members: dict[str, str] = {}
        position = skip_space(self.text, at)
        while not self.text.startswith(end, position):
            name, position, head = self._name(position)
            if name in members:
                raise MalformedCall(f"argument {name!r} occurs twice", position)
            closing = self.tags.closing_of(name)
            members[name], position = self._value(position, head, argument_schemas(schema).get(name), closing, depth)
            position = skip_space(self.text, position)
        return (
            "{"
            + ", ".join([f"{json.dumps(name, ensure_ascii=False)}: {value}" for name, value in members.items()])
            + "}",
            position,
        )

    def _name(self, at: int) -> tuple[str, int, ValueHead]:
        places = []
        for head in self.tags.heads:
            start = at + len(head.opening.strip())
            if (
                self.text.startswith(head.opening.strip(), at)
                and (place := self.text.find(head.end.strip(), start)) >= 0
            ):
                places.append((place, -len(head.end.strip()), start, head))
        if not places:
            for opening in self.tags.openings:
                if self.text.startswith(opening, at) or opening.startswith(self.text[at:]):
                    raise IncompleteCall
            expect(self.text, at, self.tags.openings[0])
        place, length, start, head = min(places, key=lambda place_and_length: place_and_length[:2])
        name = self.text[start:place].strip()
        if "\n" in name or "<" in name or not name:
            raise MalformedCall(f"expected the name of an argument and {head.end.strip()}", at)
        return name, place - length, head

    def _value(self, at: int, head: ValueHead, schema: object, closing: str, depth: int) -> tuple[str, int]:
        """Parse a value and its closing delimiter; returns its JSON and its end."""
        if depth > MAX_DEPTH:
            raise MalformedCall(f"its arguments are nested deeper than {MAX_DEPTH} levels", at)
        types = json_types(schema, self.root)
        types = (types & head.types) or types or head.types
        if self.tags.items is not None and STRING not in (types, head.types):
            return self._element(at, head, _resolve(schema, self.root), types, closing, depth)
        is_text = head.types == STRING
        if self.tags.cdata and self.text.startswith(CDATA, at):
            start = at + len(CDATA)
            end = self.text.find(CDATA_END, start)
            if end < 0:
                raise IncompleteCall
            value, position = (
                self.text[start:end],
                expect(self.text, skip_space(self.text, end + len(CDATA_END)), closing.strip()),
            )
            is_text = is_text or not types
        else:
            value, position = self._plain_text(at, head, closing)
        return json.dumps(value, ensure_ascii=False) if is_text else plain_value(value, types), position

    def _plain_text(self, at: int, head: ValueHead, closing: str) -> tuple[str, int]:
        end = self.text.find(closing.strip(), at)
        if end < 0:
            raise IncompleteCall
        return _without_padding(self.text[at:end], head.end or head.opening, closing), end + len(closing.strip())

    def _element(
        self, at: int, head: ValueHead, schema: Mapping[str, Any], types: frozenset[str], closing: str, depth: int
    ) -> tuple[str, int]:
        """Parse a value that may have elements inside."""
        tags, items = self.tags, self.tags.items or ItemTags((), "")
        start = skip_space(self.text, at)
        if self.text.startswith(closing.strip(), start):
            empty = next((written for kind, written in (("array", "[]"), ("object", "{}")) if kind in types), '""')
            return '""' if "string" in types else empty, start + len(closing.strip())
        is_item = any(self.text.startswith(item.opening.strip(), start) for item in items.heads)
        if is_item and (not types or "array" in types):
            return self._items(start, schema.get("items"), closing, depth)
        if is_item or any(self.text.startswith(opening, start) for opening in tags.openings):
            value, position = self.members(start, closing.strip(), schema, depth + 1)
            return value, position + len(closing.strip())
        value, position = self._plain_text(at, head, closing)
        return plain_value(value, types) if types else guess_value(value), position

    def _items(self, at: int, schema: object, closing: str, depth: int) -> tuple[str, int]:
        items = self.tags.items or ItemTags((), "")
        values: list[str] = []
        position = at
        while not self.text.startswith(closing.strip(), position):
            heads = [head for head in items.heads if self.text.startswith(head.opening.strip(), position)]
            if not heads:
                expect(self.text, position, items.heads[0].opening.strip())
            head = max(heads, key=lambda item_head: len(item_head.opening))
            position += len(head.opening.strip())
            value, position = self._value(position, head, schema, items.closing, depth + 1)
            values.append(value)
            position = skip_space(self.text, position)
        return "[" + ", ".join(values) + "]", position + len(closing.strip())


def plain_value(text: str, types: frozenset[str]) -> str:
    """Return an unquoted value as JSON text; templates that print values as Python does are read, too."""
    value = value_json(text, types)
    if value.startswith('"') and types & {"object", "array"} and "string" not in types:
        return literal_json(text.strip()) or value
    return value


def guess_value(text: str) -> str:
    """Return an unquoted value of unknown type as JSON text.

    A number or constant as such, anything else as a string.
    """
    value = text.strip()
    return CONSTANTS.get(value) or (value if NUMBER.fullmatch(value) else json.dumps(text, ensure_ascii=False))


def _head_for(heads: Sequence[ValueHead], schema: object) -> ValueHead:
    """Return the delimiters of values of this schema in forced calls."""
    kinds = (schema.get("type", "string") if isinstance(schema, Mapping) else "string",)
    return next((head for head in heads if not head.types or head.types & frozenset(map(str, kinds))), heads[-1])


def _resolve(schema: object, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema that a reference names, or the schema itself; empty if there is none."""
    reference = schema.get("$ref") if isinstance(schema, Mapping) else None
    resolved = (
        resolve_reference(reference, root) if isinstance(reference, str) and reference.startswith("#/") else schema
    )
    return resolved if isinstance(resolved, Mapping) else {}


def _split_closing(closing: str) -> tuple[str, str, str]:
    """Text before the first part of a closing delimiter that may be a token, that part, and the text after it."""
    mark = MARK.search(closing)
    if mark is None:
        start = len(closing) - len(closing.lstrip())
        return closing[:start], closing[start:], ""
    return closing[: mark.start()], mark[0], closing[mark.end() :]


def _without_padding(value: str, before: str, after: str) -> str:
    """Drop the line breaks that the template writes around a value."""
    if before.endswith("\n"):
        value = value.removeprefix("\n")
    return value.removesuffix("\n") if after.startswith("\n") else value
