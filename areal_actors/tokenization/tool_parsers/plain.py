"""For templates without tool support: everything but reasoning is text."""

from __future__ import annotations

from typing import Never

from areal_actors.core.errors import RequestError
from areal_actors.tokenization.tool_parsers.grammar import Grammar
from areal_actors.tokenization.tool_parsers.syntax import DeclaredTools, ParsedCalls


class NoCalls:
    """No text is a call."""

    openings: tuple[str, ...] = ()
    bare = ""
    closing = ""
    newlines = 0
    leading_newlines = 0

    def read(self, text: str, at: int, declared: DeclaredTools, *, final: bool) -> ParsedCalls:  # noqa: ARG002 - never a call
        """Return everything as text."""
        return ParsedCalls(len(text))

    def grammar(self, grammar: Grammar, declared: DeclaredTools, *, parallel: bool) -> Never:  # noqa: ARG002 - it always raises
        """Raise: the format has no syntax for calls.

        Raises:
            RequestError: always.
        """
        raise RequestError(
            "the chat template does not support tools, so a call cannot be forced: leave tools out, or set answer format generic_json",
            field="tools",
        )
