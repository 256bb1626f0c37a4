"""Description of a format's calls: their delimiters, the parser of one call, and its grammar."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from areal_actors.core.errors import RequestError
from areal_actors.tokenization.tool_parsers.base import DeclaredTools, ToolCall
from areal_actors.tokenization.tool_parsers.grammar import Grammar, alternatives

__all__ = ["CallSyntax", "IncompleteCall", "MalformedCall", "ParsedCalls", "ReasoningDelimiters"]


class ReasoningDelimiters(NamedTuple):
    """Delimiters before and after reasoning."""

    opening: str
    closing: str


THINK = (ReasoningDelimiters("<think>", "</think>"), ReasoningDelimiters("<thinking>", "</thinking>"))
MISTRAL_THINK = (ReasoningDelimiters("[THINK]", "[/THINK]"), *THINK)
KNOWN_REASONING = (
    *MISTRAL_THINK,
    ReasoningDelimiters("<seed:think>", "</seed:think>"),
    ReasoningDelimiters("<mm:think>", "</mm:think>"),
    ReasoningDelimiters("<longcat_think>", "</longcat_think>"),
    ReasoningDelimiters("<|think:start|>", "<|think:end|>"),
    ReasoningDelimiters("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningDelimiters("<|inner_prefix|>", "<|inner_suffix|>"),
    ReasoningDelimiters("<|channel>thought", "<channel|>"),
)
"""Those of Mistral, Seed-OSS, MiniMax M3, LongCat, Solar, Command R7B and A, Apertus and Gemma 4."""


class ParsedCalls(NamedTuple):
    """Calls that were parsed from a span of text."""

    end: int
    """Position after the calls."""
    calls: tuple[ToolCall, ...] = ()
    """If empty, everything up to `end` is text."""
    tool_call_error: str = ""


class MalformedCall(Exception):
    """Raised when text that begins like a call is not one, whatever follows."""

    def __init__(self, why: str, position: int) -> None:
        super().__init__(why)
        self.position = position
        """Position of the error, from which the closing delimiter is searched."""


class IncompleteCall(Exception):
    """Raised when later text may complete or change a call."""

    def __init__(self, at_end: ParsedCalls | None = None) -> None:
        super().__init__()
        self.at_end = at_end
        """Result if no text follows; None if the call is malformed then."""


def enclosed_text(text: str, start: int, closing: str) -> tuple[str, int]:
    """Return the text from `start` to the first closing delimiter, and the position after that.

    Raises:
        IncompleteCall: there is no closing delimiter.
    """
    end = text.find(closing, start)
    if end < 0:
        raise IncompleteCall
    return text[start:end], end + len(closing)


def no_calls(text: str, at: int, declared: DeclaredTools) -> ParsedCalls:  # noqa: ARG001 - never a call
    """Return everything as text."""
    return ParsedCalls(len(text))


class CallSyntax(NamedTuple):
    """Call syntax of a model family; the defaults are those of templates without tool support."""

    read: Callable[[str, int, DeclaredTools], ParsedCalls] = no_calls
    """Parses the call of declared tools that begins at a position, with an opening or a bare character.

    It raises MalformedCall if this is not a call, and IncompleteCall if later text may change the result. It is called
    once the closing delimiter has arrived, or the end of the text."""
    openings: tuple[str, ...] = ()
    """Delimiters that open calls anywhere in the text; none is a prefix of another."""
    bare: str = ""
    """Characters that open a call without a delimiter, at the start of the text only."""
    closing: str = ""
    """Delimiter that closes what `openings` open, and ends a malformed call. Empty if there is none."""
    in_reasoning: bool = False
    """True if a call between the delimiters is one inside of reasoning too, after which the answer ends."""
    newlines: int = 0
    """Line breaks that the template writes between text and a call."""
    leading_newlines: int = 0
    """Line breaks that the template writes at the start of an answer, before the text."""
    special_tokens: bool = False
    """See `AnswerFormat.special_tokens`."""

    marks: tuple[str, ...] = ()
    """All delimiters, if only the special tokens in these are part of the text."""

    body: Callable[[Grammar, str, Mapping[str, Any]], str] | None = None
    """Adds grammar rules for a call of one tool (its name, the schema of its arguments), and returns their
    expression."""
    around_call: tuple[str, str] = ("", "")
    """Delimiters before and after each call in the grammar."""
    around_calls: tuple[str, str] = ("", "")
    """Delimiters before and after all calls in the grammar."""
    brackets: Literal["", "parallel", "always"] = ""
    """Condition under which the calls are a list in the grammar."""
    separator: str = ""
    """Text between calls in the grammar."""

    def grammar(self, grammar: Grammar, declared: DeclaredTools, *, parallel: bool) -> str:
        """Add rules for a call of these tools as templates render it, and return their expression.

        With `parallel` there may be several calls.

        Raises:
            RequestError: the format has no syntax for calls.
        """
        if self.body is None:
            raise RequestError(
                "the chat template does not support tools, so a call cannot be forced: leave tools out, or use another"
                " model",
                field="tools",
            )
        bodies = alternatives([self.body(grammar, name, parameters) for name, parameters in declared.items()])
        call = grammar.rule(grammar.enclose(self.around_call, bodies))
        separator = grammar.literal(self.separator) if self.separator else ""
        calls = f"{call} ({separator} {call})*" if parallel else call
        if self.brackets == "always" or (parallel and self.brackets):
            calls = f'"[" {calls} "]"'
        return grammar.enclose(self.around_calls, calls)
