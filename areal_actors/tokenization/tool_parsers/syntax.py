"""Interface of a format's call syntax: its delimiters, its parser of one call, and its grammar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from areal_actors.tokenization.tool_parsers.base import ToolCall
from areal_actors.tokenization.tool_parsers.grammar import Grammar

DeclaredTools = Mapping[str, Mapping[str, Any]]
"""Names of the tools that may be called, and the JSON schemas of their arguments."""


class ReasoningDelimiters(NamedTuple):
    """Delimiters before and after reasoning."""

    opening: str
    closing: str


THINK = (ReasoningDelimiters("<think>", "</think>"), ReasoningDelimiters("<thinking>", "</thinking>"))


class MalformedCall(Exception):
    """Raised when text that begins like a call is not one, whatever follows."""

    def __init__(self, why: str, position: int) -> None:
        super().__init__(why)
        self.position = position
        """Position of the error, from which the closing delimiter is searched."""


class IncompleteCall(Exception):
    """Raised when the text ends within a call."""


class ParsedCalls(NamedTuple):
    """Calls that were parsed from a span of text."""

    end: int
    """Position after the calls."""
    calls: tuple[ToolCall, ...] = ()
    """If empty, everything up to `end` is text."""
    problem: str = ""


class CallSyntax(Protocol):
    """Call syntax of a model family."""

    openings: tuple[str, ...]
    """Delimiters that open calls anywhere in the text; none is a prefix of another."""
    bare: str
    """Characters that open a call without a delimiter, at the start of the text only."""
    closing: str
    """Delimiter that closes what `openings` open, and ends a malformed call. Empty if there is none."""
    newlines: int
    """Line breaks that the template writes between text and a call."""
    leading_newlines: int
    """Line breaks that the template writes at the start of an answer, before the text."""

    def read(self, text: str, at: int, declared: DeclaredTools, *, final: bool) -> ParsedCalls:
        """Parse the call that begins at `at`, with an opening or a bare character; unless `final`, later text must not change the result.

        Raises:
            MalformedCall: this is not a call.
            IncompleteCall: the text ends within the call.
        """
        ...

    def grammar(self, grammar: Grammar, declared: DeclaredTools, *, parallel: bool) -> str:
        """Add rules for a call of these tools (or several if `parallel`), and return their expression."""
        ...
