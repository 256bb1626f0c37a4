"""Parses calls written as JSON: the arguments stay the model's own text, validated but not serialized again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple, Never, TypeVar

from areal_actors.tokenization.tool_parsers.base import DeclaredTools, ToolCall
from areal_actors.tokenization.tool_parsers.syntax import IncompleteCall, MalformedCall

Parsed = TypeVar("Parsed")

MAX_DEPTH = 100
"""Maximum nesting of brackets; deeper JSON would overflow the stack of the next parser of the arguments."""

SPACE = re.compile(r"[ \t\n\r]*")
KEY = re.compile(r'[ \t\n\r]*"([^"\\\x00-\x1f]*)"[ \t\n\r]*:[ \t\n\r]*')
NAME = re.compile(r"[\w.:/\-]{1,128}")
"""Name of an undeclared tool; declared names may have other characters."""
EMPTY_OBJECT = re.compile(r"\{[ \t\n\r]*\}")
NEXT_MEMBER = re.compile(r"[ \t\n\r]*([,}])")
NEXT_ITEM = re.compile(r"[ \t\n\r]*([,\]])[ \t\n\r]*")
STRUCTURE = re.compile(r'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"|[{}\[\]"<]')
"""A whole string, a bracket, or the start of an unfinished string or of a delimiter."""
UNFINISHED_STRING = re.compile(r'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*\\?\Z')


class CallKeys(NamedTuple):
    """Key names of a call's object."""

    arguments: tuple[str, ...] = ("arguments",)
    others: tuple[str, ...] = ()
    """Accepted and ignored."""
    name: str = "name"
    """Empty if the name itself is the key of the arguments."""

    def around(self, name: str) -> tuple[str, str]:
        """Return the text of a call's object before and after its arguments."""
        quoted = json.dumps(name, ensure_ascii=False)
        return (f'{{"{self.name}": {quoted}, "{self.arguments[0]}": ' if self.name else f"{{{quoted}: "), "}"


class JsonMember(NamedTuple):
    """A value of an object, and the span of its text."""

    value: Any
    start: int
    end: int


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Parsers differ in how they treat a duplicate key."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("duplicate key in an object")
    return members


def _reject_constant(name: str) -> Never:
    raise ValueError(f"{name} is not JSON")


DECODER = json.JSONDecoder(object_pairs_hook=_reject_duplicate_keys, parse_constant=_reject_constant)


def skip_space(text: str, at: int) -> int:
    """Return the next position that is not white space."""
    match = SPACE.match(text, at)
    return match.end() if match else at


def expect(text: str, at: int, wanted: str) -> int:
    """Return the position after `wanted`, which must begin at `at`.

    Raises:
        MalformedCall: there is other text.
        IncompleteCall: the text ends within `wanted`.
    """
    if text.startswith(wanted, at):
        return at + len(wanted)
    if wanted.startswith(text[at:]):
        raise IncompleteCall
    raise MalformedCall(f"expected {wanted.strip()}, found {text[at : at + 1]!r}", at)


def _find_closing_bracket(text: str, at: int) -> int:
    """Return the end of the object or list that begins here, by counting brackets.

    The JSON may be invalid in other ways.
    """
    depth = 0
    for match in STRUCTURE.finditer(text, at):
        character = text[match.start()]
        if character in "{[":
            depth += 1
            if depth > MAX_DEPTH:
                raise MalformedCall(f"its arguments are nested deeper than {MAX_DEPTH} levels", match.start())
        elif character in "}]":
            depth -= 1
            if depth == 0:
                return match.end()
        elif character == "<":
            raise MalformedCall("there is a delimiter inside the JSON", match.start())
        elif match.end() - match.start() == 1:
            if UNFINISHED_STRING.match(text, match.start()):
                raise IncompleteCall
            raise MalformedCall("a string is not closed", match.end())
    raise IncompleteCall


def check_depth(text: str, at: int) -> None:
    """Reject JSON that is nested too deeply for a recursive parser.

    Raises:
        MalformedCall: it is, or it is broken.
        IncompleteCall: the text ends within it.
    """
    if text.count("{", at) + text.count("[", at) > MAX_DEPTH:
        _find_closing_bracket(text, at)


def _parse_members(text: str, at: int) -> tuple[dict[str, JsonMember], int]:
    """Return the members of the object that begins here, and its end; raises ValueError like a JSON decoder."""
    empty = EMPTY_OBJECT.match(text, at)
    if empty:
        return {}, empty.end()
    members: dict[str, JsonMember] = {}
    position = at + 1
    while True:
        key = KEY.match(text, position)
        if key is None:
            raise ValueError("expected a key in double quotes after '{' or ','")
        value, end = DECODER.raw_decode(text, key.end())
        if key[1] in members:
            raise ValueError("duplicate key in an object")
        members[key[1]] = JsonMember(value, key.end(), end)
        following = NEXT_MEMBER.match(text, end)
        if following is None:
            raise ValueError(f"expected ',' or '}}' after the value of {key[1]!r}")
        position = following.end()
        if following[1] == "}":
            return members, position


def read_call(text: str, at: int, declared: DeclaredTools, keys: CallKeys) -> tuple[ToolCall, int]:
    """Parse an object with a name and arguments; returns the call and its end.

    Raises:
        MalformedCall: it is not such an object, or its name is none.
        IncompleteCall: the text ends within the object.
    """
    members, end = _read_object(text, at, _parse_members)
    name, arguments = _call_members(members, keys, end)
    check_name(name, declared, end)
    return ToolCall(name=name, arguments=text[arguments.start : arguments.end]), end


def _call_members(members: dict[str, JsonMember], keys: CallKeys, end: int) -> tuple[str, JsonMember]:
    """Return the name and the arguments."""
    if not keys.name:
        if len(members) != 1:
            raise MalformedCall("expected an object with the name as its only key", end)
        name, arguments = next(iter(members.items()))
    else:
        unknown = [key for key in members if key != keys.name and key not in keys.arguments and key not in keys.others]
        if unknown:
            raise MalformedCall(f"{unknown[0]!r} is not a key of a tool call", end)
        stated = members.get(keys.name)
        values = [members[key] for key in keys.arguments if key in members]
        if stated is None or not isinstance(stated.value, str):
            raise MalformedCall("its name is missing" if stated is None else "its name is not a string", end)
        if len(values) != 1:
            raise MalformedCall(
                f"{keys.arguments[0]!r} is missing" if not values else "it has several arguments objects", end
            )
        name, arguments = stated.value, values[0]
    if not isinstance(arguments.value, dict):
        raise MalformedCall("its arguments are not an object", end)
    return name, arguments


def read_calls(text: str, at: int, declared: DeclaredTools, keys: CallKeys) -> tuple[tuple[ToolCall, ...], int]:
    """Parse such an object, or a list of them; returns the calls and the end.

    Raises:
        MalformedCall: it is neither.
        IncompleteCall: the text ends within it.
    """
    if not text.startswith("[", at):
        call, end = read_call(text, at, declared, keys)
        return (call,), end
    position = skip_space(text, at + 1)
    calls: list[ToolCall] = []
    while True:
        call, end = read_call(text, position, declared, keys)
        calls.append(call)
        following = NEXT_ITEM.match(text, end)
        if following is None and skip_space(text, end) < len(text):
            raise MalformedCall("expected ',' or ']' after a call", end)
        if following is None:
            raise IncompleteCall
        if following[1] == "]":
            return tuple(calls), following.start(1) + 1
        position = following.end()


def read_arguments(text: str, at: int) -> tuple[str, int]:
    """Parse an arguments object; returns its text and its end.

    Raises:
        MalformedCall: this is not a JSON object.
        IncompleteCall: the text ends within the object.
    """
    _, end = _read_object(text, at, DECODER.raw_decode)
    return text[at:end], end


def _read_object(text: str, at: int, parse: Callable[[str, int], tuple[Parsed, int]]) -> tuple[Parsed, int]:
    """Parse the object that begins here; returns the result of `parse`, which raises ValueError."""
    expect(text, at, "{")
    check_depth(text, at)
    try:
        return parse(text, at)
    except ValueError as error:
        # The position of the error is that of the parsed text, so it is left out.
        why = f"its JSON is invalid: {error.msg if isinstance(error, json.JSONDecodeError) else error}"
        raise MalformedCall(why, _find_closing_bracket(text, at)) from error


def check_name(name: str, declared: DeclaredTools, position: int) -> None:
    """Reject a text that names no tool; an undeclared name is a call, which the agent answers.

    Raises:
        MalformedCall: it is neither declared nor in the form of a name.
    """
    if name not in declared and not NAME.fullmatch(name):
        raise MalformedCall(f"{name[:80]!r} is not the name of a tool", position)
