"""How a model family writes reasoning and tool calls into its text, and how they are read out of it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from areal_actors.values import Constraint, Value

Tool = Mapping[str, Any]
"""`{"type": "function", "function": {"name", "description", "parameters"}}`."""


class ToolCall(Value):
    """A tool call that the model wrote."""

    name: str
    arguments: str
    """A JSON object, as the model wrote it where the format is JSON, else serialised from what it wrote."""


class Answer(Value):
    """A completion's text, taken apart."""

    reasoning: str = ""
    text: str = ""
    """What is neither reasoning nor a well-formed tool call, unchanged."""
    tool_calls: tuple[ToolCall, ...] = ()
    problem: str = ""
    """What looked like a tool call and does not parse, and why; it stands in `text`. Empty if all is well."""


class Piece(Value):
    """What a stream is sure of: exactly one of reasoning, text, or a piece of a tool call."""

    reasoning: str = ""
    text: str = ""
    call: int | None = None
    """Index of the tool call that this is a piece of."""
    name: str = ""
    """In the call's first piece."""
    arguments: str = ""


class AnswerStream(Protocol):
    """Takes a completion's text apart while it is sampled; all pieces together say what `AnswerFormat.parse` says of the whole."""

    def push(self, text: str) -> Sequence[Piece]:
        """Take the next text and return what is now certain."""
        ...

    def finish(self) -> tuple[Sequence[Piece], str]:
        """No more text comes: what was held back, and the problem (empty if none)."""
        ...


class AnswerFormat(Protocol):
    """One model family's way of writing. Stateless."""

    name: str
    special_tokens: bool
    """Its marks are special tokens, so the text has to be decoded with them."""

    def parse(self, text: str, tools: Sequence[Tool], *, in_reasoning: bool = False) -> Answer:
        """Take a whole completion apart; `in_reasoning` says that the prompt has opened the reasoning already."""
        ...

    def stream(self, tools: Sequence[Tool], *, in_reasoning: bool = False) -> AnswerStream:
        """Take a completion apart while it is sampled."""
        ...

    def constraint(self, tools: Sequence[Tool], *, parallel: bool, in_reasoning: bool = False) -> Constraint:
        """What a completion must look like to call at least one of these tools (exactly one unless `parallel`).

        `in_reasoning` says that the prompt has opened the reasoning already, so its rest comes first.

        Raises:
            RequestError: there are no tools, or the format has no way to write a call.
        """
        ...
