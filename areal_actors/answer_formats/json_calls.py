"""Reads calls that are JSON: the arguments come out as the very text that the model wrote, checked but never serialised again."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple, Never

from areal_actors.answer_formats.base import ToolCall
from areal_actors.answer_formats.syntax import Declared, Incomplete, Malformed

DEEPEST = 100
"""Brackets within brackets; deeper nesting would overflow the stack of whoever reads the arguments next."""

SPACE = re.compile(r"[ \t\n\r]*")
KEY = re.compile(r'[ \t\n\r]*"([^"\\\x00-\x1f]*)"[ \t\n\r]*:[ \t\n\r]*')
CLOSED_AT_ONCE = re.compile(r"\{[ \t\n\r]*\}")
NEXT_MEMBER = re.compile(r"[ \t\n\r]*([,}])")
NEXT_ITEM = re.compile(r"[ \t\n\r]*([,\]])[ \t\n\r]*")
STRUCTURE = re.compile(r'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"|[{}\[\]"<]')
"""A whole string, a bracket, or what can only be the start of an unfinished string or of a mark."""
UNFINISHED_STRING = re.compile(r'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*\\?\Z')


class TooDeep(Malformed):
    """Raised when brackets are nested deeper than anybody has reason to."""


class Keys(NamedTuple):
    """What the members of a call's object are called."""

    arguments: tuple[str, ...] = ("arguments",)
    others: tuple[str, ...] = ()
    """Accepted and ignored."""


class Member(NamedTuple):
    """A value of an object and where its text stands."""

    value: Any
    start: int
    end: int


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's members; a key that comes twice would mean different things to different readers."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key comes twice in one object")
    return members


def refuse_constant(name: str) -> Never:
    """NaN and the infinities are not JSON."""
    raise ValueError(f"{name} is not JSON")


DECODER = json.JSONDecoder(object_pairs_hook=unique, parse_constant=refuse_constant)


def skip_space(text: str, at: int) -> int:
    """The next position that is not white space."""
    found = SPACE.match(text, at)
    return found.end() if found else at


def expect(text: str, at: int, wanted: str) -> int:
    """The position behind what has to stand here.

    Raises:
        Malformed: something else does.
        Incomplete: the text ends before that is known.
    """
    if text.startswith(wanted, at):
        return at + len(wanted)
    if wanted.startswith(text[at:]):
        raise Incomplete
    raise Malformed(f"{wanted.strip()} should stand where {text[at : at + 1]!r} does", at)


def end_of_brackets(text: str, at: int) -> int:
    """Where the object or list that begins here ends, by its brackets alone.

    Raises:
        Malformed: it can never become JSON: a string is broken, a mark stands outside of strings, it is too deep.
        Incomplete: it is still open.
    """
    depth = 0
    for found in STRUCTURE.finditer(text, at):
        character = text[found.start()]
        if character in "{[":
            depth += 1
            if depth > DEEPEST:
                raise TooDeep(f"its arguments are nested deeper than {DEEPEST} levels", found.start())
        elif character in "}]":
            depth -= 1
            if depth == 0:
                return found.end()
        elif character == "<":
            raise Malformed("a mark stands in the middle of the JSON", found.start())
        elif found.end() - found.start() == 1:
            if UNFINISHED_STRING.match(text, found.start()):
                raise Incomplete
            raise Malformed("a string is not closed", found.end())
    raise Incomplete


def check_depth(text: str, at: int) -> None:
    """Refuse what is nested too deeply, before anything recursive reads it.

    Raises:
        TooDeep: it is.
    """
    if text.count("{", at) + text.count("[", at) <= DEEPEST:
        return
    try:
        end_of_brackets(text, at)
    except TooDeep:
        raise
    except (Incomplete, Malformed):
        return


def members_of(text: str, at: int) -> tuple[dict[str, Member], int]:
    """Members of the object that begins here, and where it ends.

    Raises:
        ValueError: this is no JSON, or not yet.
    """
    empty = CLOSED_AT_ONCE.match(text, at)
    if empty:
        return {}, empty.end()
    members: dict[str, Member] = {}
    position = at + 1
    while True:
        key = KEY.match(text, position)
        if key is None:
            raise ValueError("a key in double quotes should stand after '{' or ','")
        value, end = DECODER.raw_decode(text, key.end())
        if key[1] in members:
            raise ValueError("a key comes twice in one object")
        members[key[1]] = Member(value, key.end(), end)
        following = NEXT_MEMBER.match(text, end)
        if following is None:
            raise ValueError(f"',' or '}}' should stand after the value of {key[1]!r}")
        position = following.end()
        if following[1] == "}":
            return members, position


def read_call(text: str, at: int, declared: Declared, keys: Keys) -> tuple[ToolCall, int]:
    """Read an object that holds a name and arguments, and where it ends.

    Raises:
        Malformed: it is not such an object, or no such tool is declared.
        Incomplete: the text ends too early.
    """
    expect(text, at, "{")
    check_depth(text, at)
    try:
        members, end = members_of(text, at)
    except ValueError as error:
        raise Malformed(reason(error), end_of_brackets(text, at)) from error
    name, arguments = call_members(members, keys, end)
    check_declared(name.value, declared, end)
    return ToolCall(name=name.value, arguments=text[arguments.start : arguments.end]), end


def call_members(members: dict[str, Member], keys: Keys, end: int) -> tuple[Member, Member]:
    """The two members that make a call.

    Raises:
        Malformed: one is missing or of the wrong kind, or there is another.
    """
    strange = [key for key in members if key != "name" and key not in keys.arguments and key not in keys.others]
    if strange:
        raise Malformed(f"{strange[0]!r} is no key of a call", end)
    name = members.get("name")
    found = [members[key] for key in keys.arguments if key in members]
    if name is None or not isinstance(name.value, str):
        raise Malformed("its name is missing" if name is None else "its name is not a string", end)
    if len(found) != 1:
        raise Malformed(f"{keys.arguments[0]!r} is missing" if not found else "it has arguments twice", end)
    if not isinstance(found[0].value, dict):
        raise Malformed("its arguments are not an object", end)
    return name, found[0]


def read_calls(text: str, at: int, declared: Declared, keys: Keys) -> tuple[tuple[ToolCall, ...], int]:
    """Read a list of such objects, and where it ends.

    Raises:
        Malformed: it is no list of calls.
        Incomplete: the text ends too early.
    """
    position = skip_space(text, expect(text, at, "["))
    calls: list[ToolCall] = []
    while True:
        call, end = read_call(text, position, declared, keys)
        calls.append(call)
        following = NEXT_ITEM.match(text, end)
        if following is None:
            raise_unless_open(text, end, "',' or ']' should stand after a call")
            raise Incomplete
        if following[1] == "]":
            return tuple(calls), following.start(1) + 1
        position = following.end()


def raise_unless_open(text: str, at: int, why: str) -> None:
    """Say why, unless only white space follows, after which the right thing may still come.

    Raises:
        Malformed: something else follows.
    """
    if skip_space(text, at) < len(text):
        raise Malformed(why, at)


def read_arguments(text: str, at: int) -> tuple[str, int]:
    """Read an arguments object that stands alone: its text, and where it ends.

    Raises:
        Malformed: this is no JSON object.
        Incomplete: the text ends too early.
    """
    expect(text, at, "{")
    check_depth(text, at)
    try:
        _, end = DECODER.raw_decode(text, at)
    except ValueError as error:
        raise Malformed(reason(error), end_of_brackets(text, at)) from error
    return text[at:end], end


def check_declared(name: str, declared: Declared, position: int) -> None:
    """Refuse a call to what is no tool.

    Raises:
        Malformed: no tool has this name.
    """
    if name not in declared:
        raise Malformed(f"no tool is named {name!r}; declared are {', '.join(declared)}", position)


def reason(error: ValueError) -> str:
    """Why JSON does not parse; without a position, which would depend on where reading began."""
    return f"its JSON is broken: {error.msg if isinstance(error, json.JSONDecodeError) else error}"
