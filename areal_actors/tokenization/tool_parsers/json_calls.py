"""Parses calls written as JSON: the arguments stay the model's own text, validated but not serialized again."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple, Never

from areal_actors.tokenization.tool_parsers.base import ToolCall
from areal_actors.tokenization.tool_parsers.syntax import DeclaredTools, IncompleteCall, MalformedCall

MAX_DEPTH = 100
"""Maximum nesting of brackets; deeper JSON would overflow the stack of the next parser of the arguments."""

SPACE = re.compile(r"[ \t\n\r]*")
KEY = re.compile(r'[ \t\n\r]*"([^"\\\x00-\x1f]*)"[ \t\n\r]*:[ \t\n\r]*')
EMPTY_OBJECT = re.compile(r"\{[ \t\n\r]*\}")
NEXT_MEMBER = re.compile(r"[ \t\n\r]*([,}])")
NEXT_ITEM = re.compile(r"[ \t\n\r]*([,\]])[ \t\n\r]*")
STRUCTURE = re.compile(r'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"|[{}\[\]"<]')
"""A whole string, a bracket, or the start of an unfinished string or of a delimiter."""
UNFINISHED_STRING = re.compile(r'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*\\?\Z')


class NestedTooDeep(MalformedCall):
    """Raised when brackets are nested deeper than `MAX_DEPTH`."""


class CallKeys(NamedTuple):
    """Key names of a call's object."""

    arguments: tuple[str, ...] = ("arguments",)
    others: tuple[str, ...] = ()
    """Accepted and ignored."""


class JsonMember(NamedTuple):
    """A value of an object, and the span of its text."""

    value: Any
    start: int
    end: int


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's members; parsers differ in how they treat a duplicate key."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("duplicate key in an object")
    return members


def reject_constant(name: str) -> Never:
    """Raise ValueError: NaN and the infinities are not JSON."""
    raise ValueError(f"{name} is not JSON")


DECODER = json.JSONDecoder(object_pairs_hook=reject_duplicate_keys, parse_constant=reject_constant)


def skip_space(text: str, at: int) -> int:
    """Return the next position that is not white space."""
    found = SPACE.match(text, at)
    return found.end() if found else at


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


def find_closing_bracket(text: str, at: int) -> int:
    """Return the end of the object or list that begins here, by counting brackets.

    Raises:
        MalformedCall: no continuation is JSON: a string is broken, a delimiter occurs outside of strings, it is too deep.
        IncompleteCall: a bracket is still open.
    """
    depth = 0
    for found in STRUCTURE.finditer(text, at):
        character = text[found.start()]
        if character in "{[":
            depth += 1
            if depth > MAX_DEPTH:
                raise NestedTooDeep(f"its arguments are nested deeper than {MAX_DEPTH} levels", found.start())
        elif character in "}]":
            depth -= 1
            if depth == 0:
                return found.end()
        elif character == "<":
            raise MalformedCall("there is a delimiter inside the JSON", found.start())
        elif found.end() - found.start() == 1:
            if UNFINISHED_STRING.match(text, found.start()):
                raise IncompleteCall
            raise MalformedCall("a string is not closed", found.end())
    raise IncompleteCall


def check_depth(text: str, at: int) -> None:
    """Reject JSON that is nested too deeply, before a recursive parser reads it.

    Raises:
        NestedTooDeep: it is nested deeper than `MAX_DEPTH`.
    """
    if text.count("{", at) + text.count("[", at) <= MAX_DEPTH:
        return
    try:
        find_closing_bracket(text, at)
    except NestedTooDeep:
        raise
    except (IncompleteCall, MalformedCall):
        return


def parse_members(text: str, at: int) -> tuple[dict[str, JsonMember], int]:
    """Return the members of the object that begins here, and its end.

    Raises:
        ValueError: this is not JSON, or incomplete.
    """
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
        MalformedCall: it is not such an object, or no tool has this name.
        IncompleteCall: the text ends within the object.
    """
    expect(text, at, "{")
    check_depth(text, at)
    try:
        members, end = parse_members(text, at)
    except ValueError as error:
        raise MalformedCall(json_error_message(error), find_closing_bracket(text, at)) from error
    name, arguments = call_members(members, keys, end)
    check_declared(name.value, declared, end)
    return ToolCall(name=name.value, arguments=text[arguments.start : arguments.end]), end


def call_members(members: dict[str, JsonMember], keys: CallKeys, end: int) -> tuple[JsonMember, JsonMember]:
    """Return name and arguments of a call.

    Raises:
        MalformedCall: one is missing or has the wrong type, or there is an unknown key.
    """
    unknown = [key for key in members if key != "name" and key not in keys.arguments and key not in keys.others]
    if unknown:
        raise MalformedCall(f"{unknown[0]!r} is not a key of a tool call", end)
    name = members.get("name")
    found = [members[key] for key in keys.arguments if key in members]
    if name is None or not isinstance(name.value, str):
        raise MalformedCall("its name is missing" if name is None else "its name is not a string", end)
    if len(found) != 1:
        raise MalformedCall(f"{keys.arguments[0]!r} is missing" if not found else "it has several arguments objects", end)
    if not isinstance(found[0].value, dict):
        raise MalformedCall("its arguments are not an object", end)
    return name, found[0]


def read_calls(text: str, at: int, declared: DeclaredTools, keys: CallKeys) -> tuple[tuple[ToolCall, ...], int]:
    """Parse a list of such objects; returns the calls and the end of the list.

    Raises:
        MalformedCall: it is not a list of calls.
        IncompleteCall: the text ends within the list.
    """
    position = skip_space(text, expect(text, at, "["))
    calls: list[ToolCall] = []
    while True:
        call, end = read_call(text, position, declared, keys)
        calls.append(call)
        following = NEXT_ITEM.match(text, end)
        if following is None:
            raise_unless_end_of_text(text, end, "expected ',' or ']' after a call")
            raise IncompleteCall
        if following[1] == "]":
            return tuple(calls), following.start(1) + 1
        position = following.end()


def raise_unless_end_of_text(text: str, at: int, why: str) -> None:
    """Raise with this message unless only white space follows, so that later text may still complete the call.

    Raises:
        MalformedCall: other text follows.
    """
    if skip_space(text, at) < len(text):
        raise MalformedCall(why, at)


def read_arguments(text: str, at: int) -> tuple[str, int]:
    """Parse an arguments object; returns its text and its end.

    Raises:
        MalformedCall: this is not a JSON object.
        IncompleteCall: the text ends within the object.
    """
    expect(text, at, "{")
    check_depth(text, at)
    try:
        _, end = DECODER.raw_decode(text, at)
    except ValueError as error:
        raise MalformedCall(json_error_message(error), find_closing_bracket(text, at)) from error
    return text[at:end], end


def check_declared(name: str, declared: DeclaredTools, position: int) -> None:
    """Reject a call of an undeclared tool.

    Raises:
        MalformedCall: no tool has this name.
    """
    if name not in declared:
        raise MalformedCall(f"no tool is named {name!r}; declared are {', '.join(declared)}", position)


def json_error_message(error: ValueError) -> str:
    """Return the JSON error without its position, which would be relative to the parsed text."""
    return f"its JSON is invalid: {error.msg if isinstance(error, json.JSONDecodeError) else error}"
