"""Calls described by data, as learned from a chat template.

A pattern has the delimiters around a section, its calls, their names and arguments. White space between delimiters is
ignored when calls are read, since models vary it; values keep theirs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from areal_actors.tokenization.tool_parsers.argument_tags import ArgumentTags
from areal_actors.tokenization.tool_parsers.base import DeclaredTools, ToolCall
from areal_actors.tokenization.tool_parsers.grammar import Grammar
from areal_actors.tokenization.tool_parsers.json_calls import (
    CallKeys,
    check_name,
    expect,
    read_arguments,
    read_call,
    skip_space,
)
from areal_actors.tokenization.tool_parsers.quoted_values import QuotedValues
from areal_actors.tokenization.tool_parsers.syntax import CallSyntax, IncompleteCall, MalformedCall, ParsedCalls

NAMED_ID = re.compile(r"(?:functions\.)?(?P<name>.+?)(?::\d+)?", re.DOTALL)
"""A call id that names its function, as Kimi K2 writes it: `functions.NAME:INDEX`."""
DIGITS = re.compile(r"[0-9]{1,6}")


class CallPattern(NamedTuple):
    """Delimiters of calls, and the form of their arguments."""

    section: tuple[str, str]
    """Before the first call and after the last one; the second may be a stop token, which is not part of the text."""
    call: tuple[str, str]
    """Before and after each call."""
    separator: str = ""
    listed: bool = False
    """True if the calls are a JSON list."""
    keys: CallKeys | None = None
    """Keys of a call that is a JSON object; None if the name is written between delimiters."""
    id_end: str = ""
    """Delimiter after the id of a call, which precedes its name."""
    named_ids: bool = False
    """True if the name is part of the id."""
    name_end: str = ""
    """Delimiter between name and arguments."""
    name_number: str = ""
    """Rest of that delimiter, if the number of the call stands in it."""
    arguments: ArgumentTags | QuotedValues | None = None
    """Form of arguments that are not a JSON object."""

    @property
    def opening(self) -> str:
        """Delimiter that opens calls anywhere in the text."""
        return (self.section[0] or self.call[0]).strip()

    @property
    def closing(self) -> str:
        """Delimiter that closes them; empty if there is none."""
        return (self.section[1] if self.section[0] else self.call[1]).strip()

    @property
    def delimiters(self) -> tuple[str, ...]:
        """All delimiters."""
        tags = self.arguments.delimiters if self.arguments is not None else ()
        return (*self.section, *self.call, self.id_end, self.name_end, self.name_number, *tags)

    def read(self, text: str, at: int, declared: DeclaredTools) -> ParsedCalls:
        """Parse all calls of a section; one that does not parse makes the whole section text."""
        position = skip_space(text, at + len(self.section[0].strip()))
        if self.listed:
            position = skip_space(text, expect(text, position, "["))
        calls: list[ToolCall] = []
        while True:
            call, position = self._read_call(text, position, declared)
            calls.append(call)
            following = skip_space(text, position)
            if self.listed and text.startswith(",", following):
                position = skip_space(text, following + 1)
                continue
            if not self.section[0] or not (self.call[0].strip() and text.startswith(self.call[0].strip(), following)):
                break
            position = following
        if self.listed:
            position = expect(text, following, "]")
        return self._end_of_section(text, position, tuple(calls))

    def _end_of_section(self, text: str, position: int, calls: tuple[ToolCall, ...]) -> ParsedCalls:
        closing = self.section[1].strip() if self.section[0] else ""
        if not closing:
            return ParsedCalls(position, calls)
        following = skip_space(text, position)
        if len(text) - following < len(closing) and closing.startswith(text[following:]):
            raise IncompleteCall(ParsedCalls(len(text), calls))
        return ParsedCalls(expect(text, following, closing), calls)

    def _read_call(self, text: str, at: int, declared: DeclaredTools) -> tuple[ToolCall, int]:
        """Parse one call with its delimiters; returns it and its end."""
        position = skip_space(text, expect(text, at, self.call[0].strip()))
        if self.keys is not None:
            call, position = read_call(text, position, declared, self.keys)
        else:
            call, position = self._read_named(text, position, declared)
        closing = self.call[1].strip()
        return call, expect(text, skip_space(text, position), closing) if closing else position

    def _read_named(self, text: str, at: int, declared: DeclaredTools) -> tuple[ToolCall, int]:
        """Parse a call whose name is written between delimiters; `at` is after its opening one."""
        identifier = ""
        if self.id_end:
            identifier, at = _up_to(text, at, (self.id_end,))
            at += len(self.id_end.strip())
        tags = self.arguments if isinstance(self.arguments, ArgumentTags) else None
        ends = (
            (self.name_end, *tags.openings, self.call[1] or self.section[1])
            if tags
            else (self.name_end.strip() or "{",)
        )
        name, position = _up_to(text, at, ends)
        if self.named_ids:
            identifier, match = name, NAMED_ID.fullmatch(name)
            name = match["name"] if match else ""
        check_name(name, declared, at)
        if self.name_end.strip() and text.startswith(self.name_end.strip(), position):
            position += len(self.name_end.strip())
            position = self._after_number(text, position)
        parameters = declared.get(name, {})
        if tags is not None:
            arguments, position = tags.read(text, position, (self.call[1] or self.section[1]).strip(), parameters)
        elif isinstance(self.arguments, QuotedValues):
            arguments, position = self.arguments.read(text, position)
        else:
            arguments, position = read_arguments(text, skip_space(text, position))
        return ToolCall(name=name, arguments=arguments, id=identifier), position

    def _after_number(self, text: str, at: int) -> int:
        """Return the position after the number of a call and the rest of its delimiter, if it has one."""
        if not self.name_number:
            return at
        digits = DIGITS.match(text, at)
        if digits is None:
            raise MalformedCall("expected the number of the call", at)
        return expect(text, digits.end(), self.name_number.strip())

    def body(self, grammar: Grammar, name: str, parameters: Mapping[str, Any]) -> str:
        """Return the grammar of a call of one tool, with the delimiters around each call."""
        if self.keys is not None:
            head, end = self.keys.around(name)
        else:
            head, end = f"functions.{name}" if self.named_ids else name, ""
        digits = ['":" /[0-9]{1,3}/'] if self.named_ids else []
        identifier = [f"/[a-zA-Z0-9]{{9}}/ {grammar.text(self.id_end)}"] if self.id_end else []
        if isinstance(self.arguments, ArgumentTags | QuotedValues):
            arguments = self.arguments.grammar(grammar, parameters)
        else:
            arguments = grammar.arguments(parameters)
        number = ["/[0-9]{1,3}/", grammar.text(self.name_number)] if self.name_number else []
        parts = (
            grammar.text(self.call[0]),
            *identifier,
            grammar.literal(head),
            *digits,
            grammar.text(self.name_end),
            *number,
        )
        return " ".join(filter(None, (*parts, arguments, grammar.text(end + self.call[1]))))

    def syntax(self, newlines: int = 0) -> CallSyntax:
        """Return the call syntax of this pattern, whose template writes this number of line breaks before calls."""
        return CallSyntax(
            self.read,
            (self.opening,),
            closing=self.closing,
            in_reasoning=bool(self.closing) and "```" not in self.opening,
            newlines=newlines,
            body=self.body,
            around_calls=self.section,
            brackets="always" if self.listed else "",
            separator=", " if self.listed else self.separator,
            marks=self.delimiters,
        )

    def write(self, calls: Sequence[tuple[str, str]]) -> str:
        """Return calls (names, and arguments as JSON) as text; only for calls that are JSON objects."""
        assert self.keys is not None
        objects = [arguments.join(self.keys.around(name)) for name, arguments in calls]
        brackets = ("[", "]") if self.listed else ("", "")
        between = ", " if self.listed else self.separator
        text = between.join(f"{self.call[0]}{written}{self.call[1]}" for written in objects)
        return f"{self.section[0]}{brackets[0]}{text}{brackets[1]}{self.section[1]}"


def _up_to(text: str, at: int, ends: tuple[str, ...]) -> tuple[str, int]:
    """Return the stripped text up to the first of these delimiters, and its position."""
    places = [place for end in ends if end.strip() and (place := text.find(end.strip(), at)) >= 0]
    if not places:
        raise IncompleteCall
    return text[at : min(places)].strip(), min(places)
