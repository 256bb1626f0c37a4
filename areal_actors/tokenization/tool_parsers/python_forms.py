"""Python calls without delimiters of their own.

They are `[name(key=value), …]` at the start of an answer, and lines in a fence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from areal_actors.tokenization.tool_parsers.base import DeclaredTools
from areal_actors.tokenization.tool_parsers.pythonic import DELIMITERS, PYTHONIC, pythonic_calls, write_call
from areal_actors.tokenization.tool_parsers.syntax import (
    CallSyntax,
    IncompleteCall,
    MalformedCall,
    ParsedCalls,
    enclosed_text,
)

START = re.compile(r"\[\s*[A-Za-z_][\w.\-]*\(")
PARTIAL_START = re.compile(r"\[\s*(?:[A-Za-z_][\w.\-]*)?\Z")
STRUCTURE = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[\[\](){}'\"]", re.DOTALL)
"""A whole string, a bracket, or the start of an unfinished string."""
FENCE, END_OF_FENCE = "```python", "```"
FENCED = re.compile(rf"{FENCE}\n(.*?)\n?{END_OF_FENCE}", re.DOTALL)


def read_list(text: str, at: int, declared: DeclaredTools) -> ParsedCalls:
    """Parse a list of calls that begins here; a bracket that is followed by no call is text."""
    as_text = ParsedCalls(at + 1)
    if not START.match(text, at):
        if PARTIAL_START.match(text, at):
            raise IncompleteCall(as_text)
        return as_text
    end = _end_of_list(text, at)
    return ParsedCalls(end, pythonic_calls(text[at:end], at, declared))


def _end_of_list(text: str, at: int) -> int:
    """Return the position after the bracket that closes the list.

    Raises:
        IncompleteCall: there is none yet.
    """
    depth = 0
    for match in STRUCTURE.finditer(text, at):
        if match[0] in ("[", "(", "{"):
            depth += 1
        elif match[0] in ("]", ")", "}"):
            depth -= 1
            if depth == 0:
                return match.end()
        elif len(match[0]) == 1:
            break
    raise IncompleteCall


def read_fence(text: str, at: int, declared: DeclaredTools) -> ParsedCalls:
    """Parse calls on separate lines of a fence between LFM2's delimiters."""
    start = at + len(DELIMITERS[0])
    written, end = enclosed_text(text, start, DELIMITERS[1])
    fenced = FENCED.fullmatch(written.strip())
    if fenced is None:
        raise MalformedCall(f"expected calls between {FENCE} and {END_OF_FENCE}", start)
    return ParsedCalls(end, pythonic_calls(fenced[1], start, declared, as_lines=True))


PYTHON_LIST = CallSyntax(read_list, bare="[", body=PYTHONIC.body, brackets="always", separator=", ")
"""Llama 3.2 and 4 with Python calls."""
PYTHON_FENCE = PYTHONIC._replace(
    read=read_fence,
    around_calls=(f"{DELIMITERS[0]}\n{FENCE}\n", f"\n{END_OF_FENCE}\n{DELIMITERS[1]}"),
    brackets="",
    separator="\n",
)
"""MiniCPM3."""


def write_list(calls: Sequence[tuple[str, str]]) -> str:
    """Return calls (names, and arguments as JSON) as a list."""
    return f"[{', '.join(map(write_call, calls))}]"


def write_fence(calls: Sequence[tuple[str, str]]) -> str:
    """Return calls (names, and arguments as JSON) as lines of a fence."""
    lines = "\n".join(map(write_call, calls))
    opening, closing = PYTHON_FENCE.around_calls
    return f"{opening}{lines}{closing}"
