"""Interfaces of answer formats: a completion's text to reasoning, text and tool calls, and grammars that force a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from areal_actors.core.values import Constraint, Value

ToolDefinition = Mapping[str, Any]
"""`{"type": "function", "function": {"name", "description", "parameters"}}`."""


class ToolCall(Value):
    """A tool call that the model wrote."""

    name: str
    arguments: str
    """A JSON object: the model's own text if the format writes JSON, else serialized from the parsed values."""


class Answer(Value):
    """A parsed completion."""

    reasoning: str = ""
    text: str = ""
    """Everything that is neither reasoning nor a well-formed tool call, unchanged."""
    tool_calls: tuple[ToolCall, ...] = ()
    problem: str = ""
    """Parse error of a malformed tool call, which stays in `text`. Empty if there is none."""


class Delta(Value):
    """A parsed increment of a stream: exactly one of reasoning, text, or part of a tool call."""

    reasoning: str = ""
    text: str = ""
    call: int | None = None
    """Index of the tool call."""
    name: str = ""
    """Set in the call's first delta only."""
    arguments: str = ""


class StreamParser(Protocol):
    """Parses a completion while it is sampled; its deltas add up to what `AnswerFormat.parse` returns for the whole text."""

    def push(self, text: str) -> Sequence[Delta]:
        """Append text and return the deltas that no later text can change."""
        ...

    def finish(self) -> tuple[Sequence[Delta], str]:
        """End the text: returns the deltas that were held back, and the problem (empty if none)."""
        ...


class AnswerFormat(Protocol):
    """Output syntax of a model family. Stateless."""

    name: str
    special_tokens: bool
    """True if its delimiters are special tokens, so that the text has to be decoded with them."""

    def parse(self, text: str, tools: Sequence[ToolDefinition], *, in_reasoning: bool = False) -> Answer:
        """Parse a whole completion; with `in_reasoning` the prompt has already opened the reasoning."""
        ...

    def stream(self, tools: Sequence[ToolDefinition], *, in_reasoning: bool = False) -> StreamParser:
        """Return a parser for a completion that is being sampled."""
        ...

    def constraint(self, tools: Sequence[ToolDefinition], *, parallel: bool, in_reasoning: bool = False) -> Constraint:
        """Return a constraint that forces a call of at least one of these tools (exactly one unless `parallel`).

        With `in_reasoning` the prompt has already opened the reasoning, so the completion begins with the rest of it.

        Raises:
            RequestError: there are no tools, or the format has no syntax for calls.
        """
        ...
