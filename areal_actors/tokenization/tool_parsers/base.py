"""Interfaces of answer formats.

They turn a completion's text into reasoning, text and tool calls, and make grammars that force a call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from areal_actors.core.errors import RequestError
from areal_actors.core.values import Constraint, Value
from areal_actors.tokenization.tool_parsers.grammar import Grammar

__all__ = ["Answer", "AnswerFormat", "Delta", "StreamParser", "ToolCall"]

ToolDefinition = Mapping[str, Any]
"""`{"type": "function", "function": {"name", "description", "parameters"}}`."""
DeclaredTools = Mapping[str, Mapping[str, Any]]
"""Names of the tools that may be called, and the JSON schemas of their arguments."""

END_CHARACTERS = 256
"""Characters at a prompt's end in which a delimiter is searched first."""


class ToolCall(Value):
    """A tool call that the model wrote."""

    name: str
    arguments: str
    """A JSON object: the model's own text if the format writes JSON, else serialized from the parsed values."""
    id: str = ""
    """The id that the model wrote; empty where the gateway assigns one."""


class Answer(Value):
    """A parsed completion."""

    reasoning: str = ""
    text: str = ""
    """Everything that is neither reasoning nor a well-formed tool call, unchanged."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_error: str = ""
    """Parse error of a malformed tool call, which stays in `text`. Empty if there is none."""


class Delta(Value):
    """A parsed increment of a stream: exactly one of reasoning, text, or a tool call."""

    reasoning: str = ""
    text: str = ""
    call: int | None = None
    """Index of the tool call."""
    name: str = ""
    arguments: str = ""
    id: str = ""
    """The id that the model wrote; empty where the gateway assigns one."""


class StreamParser(ABC):
    """Parses a completion while it is sampled.

    Its deltas add up to what `AnswerFormat.parse` returns for the whole text.
    """

    def __init__(self, declared: DeclaredTools, withheld: frozenset[str] = frozenset()) -> None:
        """`withheld` are names of tools whose calls are text.

        The model has them in its prompt, and may not call them.
        """
        self._declared, self._withheld = declared, withheld
        self._pending = ""
        """Text that has not been emitted yet."""
        self._calls = 0
        self._problems: list[str] = []
        self._deltas: list[Delta] = []

    def push(self, text: str) -> Sequence[Delta]:
        """Append text and return the deltas that no later text can change."""
        self._pending += text
        return self._advance(final=False)

    def finish(self) -> tuple[Sequence[Delta], str]:
        """End the text: returns the deltas that were held back, and the problem (empty if none)."""
        deltas, problems = self._advance(final=True), self._problems
        return deltas, problems[0] + (f" (and {len(problems) - 1} more)" if problems[1:] else "") if problems else ""

    def _advance(self, *, final: bool) -> list[Delta]:
        """Parse the pending text as far as it is certain."""
        while self._step(final=final):
            pass
        deltas, self._deltas = self._deltas, []
        return deltas

    @abstractmethod
    def _step(self, *, final: bool) -> bool:
        """Parse the next part of the pending text; false if more text is needed."""

    def _emit_call(self, call: ToolCall) -> None:
        self._deltas.append(Delta(call=self._calls, name=call.name, arguments=call.arguments, id=call.id))
        self._calls += 1


class AnswerFormat(ABC):
    """Output syntax of a model family. Stateless."""

    name: str
    special_tokens: bool
    """True if its delimiters are special tokens, so that the text has to be decoded with them."""
    marks: Sequence[str] = ()
    """All delimiters, if the text has to be decoded with the special tokens in these only."""
    reasoning: Sequence[tuple[str, str]] = ()
    """Delimiters before and after reasoning."""

    def parse(
        self,
        text: str,
        tools: Sequence[ToolDefinition],
        *,
        in_reasoning: bool = False,
        withheld: frozenset[str] = frozenset(),
    ) -> Answer:
        """Parse a whole completion; with `in_reasoning` the prompt has already opened the reasoning.

        Calls of `withheld` tools are text.
        """
        if not in_reasoning and self._is_plain(text, tools):
            return Answer(text=text)
        stream = self.stream(tools, in_reasoning=in_reasoning, withheld=withheld)
        deltas = stream.push(text)
        rest, problem = stream.finish()
        deltas = [*deltas, *rest]
        return Answer(
            reasoning="".join([delta.reasoning for delta in deltas]),
            text="".join([delta.text for delta in deltas]),
            tool_calls=tuple(
                [
                    ToolCall(name=delta.name, arguments=delta.arguments, id=delta.id)
                    for delta in deltas
                    if delta.call is not None
                ]
            ),
            tool_call_error=problem,
        )

    def constraint(self, tools: Sequence[ToolDefinition], *, parallel: bool, in_reasoning: bool = False) -> Constraint:
        """Return a constraint that forces a call of at least one of these tools (exactly one unless `parallel`).

        With `in_reasoning` the prompt has already opened the reasoning, so the completion begins with the rest of it.

        Raises:
            RequestError: there are no tools, or the format has no syntax for calls.
        """
        if not tools:
            raise RequestError(
                "a tool call is required but there are no tools: add tools, or set tool_choice to auto", field="tools"
            )
        grammar = Grammar()
        return grammar.constraint(
            self._grammar(grammar, declared_tools(tools), parallel=parallel, in_reasoning=in_reasoning)
        )

    def opens_reasoning(self, prompt: str) -> bool:
        """True if a prompt ends with the delimiter that opens reasoning."""
        if not self.reasoning:
            return False
        end = prompt[-END_CHARACTERS:].rstrip()  # a whole prompt is long to copy
        end = end if 2 * len(end) > END_CHARACTERS else prompt.rstrip()
        return end.endswith(tuple([opening for opening, _ in self.reasoning]))

    def closes_reasoning(self, text: str) -> bool:
        """True if a text begins with the delimiter that closes reasoning."""
        return text.lstrip().startswith(tuple(closing for _, closing in self.reasoning))

    @abstractmethod
    def stream(
        self, tools: Sequence[ToolDefinition], *, in_reasoning: bool = False, withheld: frozenset[str] = frozenset()
    ) -> StreamParser:
        """Return a parser for a completion that is being sampled."""

    @abstractmethod
    def _is_plain(self, text: str, tools: Sequence[ToolDefinition]) -> bool:
        """True if neither reasoning nor calls begin in this text."""

    @abstractmethod
    def _grammar(self, grammar: Grammar, declared: DeclaredTools, *, parallel: bool, in_reasoning: bool) -> str:
        """Return an expression for optional reasoning, then one call, or more if `parallel`.

        If the prompt has opened the reasoning, the expression begins with its rest.
        """


def declared_tools(tools: Sequence[ToolDefinition]) -> dict[str, Mapping[str, Any]]:
    """Return argument schemas of the tools by name."""
    functions = [tool["function"] for tool in tools]
    return {function["name"]: function.get("parameters") or {} for function in functions}


def withheld_call(name: str) -> str:
    """Return the message about a call of a tool that may not be called."""
    return f"tool_choice does not allow a call of {name!r}"


def call_problem(why: object) -> str:
    """Return the message about a malformed call."""
    return f"a tool call does not parse: {why}"
