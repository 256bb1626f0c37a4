"""For templates that know no tools: everything but reasoning is text."""

from __future__ import annotations

from typing import Never

from areal_actors.answer_formats.grammar import Grammar
from areal_actors.answer_formats.syntax import Block, Declared
from areal_actors.errors import RequestError


class NoCalls:
    """Nothing begins a call."""

    marks: tuple[str, ...] = ()
    bare = ""
    closing = ""
    newlines = 0
    leading = 0

    def read(self, text: str, at: int, declared: Declared, *, final: bool) -> Block:  # noqa: ARG002 - never a call
        """Everything is text."""
        return Block(len(text))

    def grammar(self, grammar: Grammar, declared: Declared, *, parallel: bool) -> Never:  # noqa: ARG002 - there is none
        """There is no way to write a call.

        Raises:
            RequestError: always.
        """
        raise RequestError(
            "the model's chat template knows no tools, so no call can be forced: leave tools out, or choose the answer format generic_json",
            field="tools",
        )
