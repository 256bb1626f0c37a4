"""What a format says of itself: how its calls are written, and how one is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from areal_actors.answer_formats.base import ToolCall
from areal_actors.answer_formats.grammar import Grammar

Declared = Mapping[str, Mapping[str, Any]]
"""Names of the tools that may be called, and the JSON schemas of their arguments."""


class ReasoningMarks(NamedTuple):
    """What stands before and after reasoning."""

    opening: str
    closing: str


THINK = (ReasoningMarks("<think>", "</think>"), ReasoningMarks("<thinking>", "</thinking>"))


class Malformed(Exception):
    """Raised when what begins like a call is none, whatever may follow."""

    def __init__(self, why: str, position: int) -> None:
        super().__init__(why)
        self.position = position
        """Where reading stopped; a closing mark is looked for from here on."""


class Incomplete(Exception):
    """Raised when the text ends in the middle of a call."""


class Block(NamedTuple):
    """Calls that were read."""

    end: int
    """Where the text goes on."""
    calls: tuple[ToolCall, ...] = ()
    """If empty, all up to `end` is text."""
    problem: str = ""


class CallSyntax(Protocol):
    """How a family writes calls."""

    marks: tuple[str, ...]
    """With which calls begin anywhere; none is the beginning of another."""
    bare: str
    """Characters with which calls may begin without a mark, as the first thing in the text."""
    closing: str
    """The mark that ends what `marks` begin; text goes on behind it after a malformed call. Empty if there is none."""
    newlines: int
    """Line breaks that the template writes between text and a call."""
    leading: int
    """Line breaks that the template writes at the start of an answer, before the text."""

    def read(self, text: str, at: int, declared: Declared, *, final: bool) -> Block:
        """Read what begins at `at`, with a mark or a bare character; what it says must hold whatever follows, unless `final`.

        Raises:
            Malformed: this is no call.
            Incomplete: the text ends too early.
        """
        ...

    def grammar(self, grammar: Grammar, declared: Declared, *, parallel: bool) -> str:
        """Add rules for one call (or more) to these tools, and return the expression that stands for them."""
        ...
