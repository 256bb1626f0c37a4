"""The parser that most formats share: reasoning first, then text with tool calls in it.

A format adds its `CallSyntax`: the delimiters that open its calls, and the parser of one call. Nothing is emitted before it is
certain, so the deltas of a stream add up to exactly what `parse` returns for the whole text:

- Reasoning opens at the very start (or in the prompt). Without its closing delimiter, all is reasoning. One line break inside
  each delimiter is part of the delimiter, and up to two after the closing one.
- Line breaks before a call are part of the call, as many as the family's template writes (`CallSyntax.newlines`); those that it
  writes at the start of an answer (`CallSyntax.leading_newlines`) are dropped. If only white space precedes or
  follows a call, it is dropped as well.
- A call is emitted once it is complete and well-formed; until then it is held back. A malformed call stays text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from areal_actors.core.errors import RequestError
from areal_actors.core.values import Constraint
from areal_actors.tokenization.tool_parsers.base import Answer, Delta, StreamParser, ToolCall, ToolDefinition
from areal_actors.tokenization.tool_parsers.grammar import Grammar
from areal_actors.tokenization.tool_parsers.syntax import (
    THINK,
    CallSyntax,
    DeclaredTools,
    IncompleteCall,
    MalformedCall,
    ParsedCalls,
    ReasoningDelimiters,
)

RESCAN_THRESHOLD = 256
"""Length of a held call, in characters, from which it is parsed again only when a new character may end it."""

NEWLINES_AFTER_REASONING = 2
"""Line breaks after the end of reasoning that are part of its delimiter."""

START, REASONING, TEXT = range(3)


class DelimitedFormat:
    """An answer format built from a call syntax."""

    def __init__(self, name: str, syntax: CallSyntax, *, special_tokens: bool, reasoning: Sequence[ReasoningDelimiters] = THINK) -> None:
        self.name = name
        self.special_tokens = special_tokens
        self._syntax = syntax
        self._reasoning = tuple(reasoning)
        self._reasoning_openings = tuple(delimiters.opening for delimiters in reasoning)
        self._openings = compile_delimiters(syntax.openings)

    def parse(self, text: str, tools: Sequence[ToolDefinition], *, in_reasoning: bool = False) -> Answer:
        """Parse a whole completion."""
        if not in_reasoning and self._is_plain(text, tools):
            return Answer(text=text)
        stream = DelimitedStreamParser(self._syntax, self._openings, self._reasoning, declared_tools(tools), in_reasoning=in_reasoning)
        deltas = stream.push(text)
        rest, problem = stream.finish()
        return join_deltas([*deltas, *rest], problem)

    def stream(self, tools: Sequence[ToolDefinition], *, in_reasoning: bool = False) -> StreamParser:
        """Return a parser for a completion that is being sampled."""
        return DelimitedStreamParser(self._syntax, self._openings, self._reasoning, declared_tools(tools), in_reasoning=in_reasoning)

    def constraint(self, tools: Sequence[ToolDefinition], *, parallel: bool, in_reasoning: bool = False) -> Constraint:
        """Return a grammar of optional reasoning (its rest, if the prompt has opened it), then one call, or more if `parallel`.

        Raises:
            RequestError: there are no tools.
        """
        if not tools:
            raise RequestError("a tool call is required but there are no tools: add tools, or set tool_choice to auto", field="tools")
        grammar = Grammar()
        calls = self._syntax.grammar(grammar, declared_tools(tools), parallel=parallel)
        thoughts = [grammar.until(delimiters.closing) + r" /\n{0,2}/" for delimiters in self._reasoning]
        if in_reasoning and thoughts:
            return grammar.constraint(f"({' | '.join(thoughts)}) {calls}")
        opened = [
            f"{grammar.delimiter(delimiters.opening)} {thought}" for delimiters, thought in zip(self._reasoning, thoughts, strict=True)
        ]
        return grammar.constraint(f"({' | '.join(opened)})? {calls}" if opened else calls)

    def _is_plain(self, text: str, tools: Sequence[ToolDefinition]) -> bool:
        """True if neither reasoning nor calls begin in this text."""
        start = text.lstrip()
        if start.startswith(self._reasoning_openings) or (self._syntax.leading_newlines and text.startswith("\n")):
            return False
        return not tools or not ((self._openings and self._openings.search(text)) or (start and start[0] in self._syntax.bare))


class DelimitedStreamParser:
    """Parses a completion while it is sampled."""

    def __init__(
        self,
        syntax: CallSyntax,
        openings: re.Pattern[str] | None,
        reasoning: Sequence[ReasoningDelimiters],
        declared: DeclaredTools,
        *,
        in_reasoning: bool,
    ) -> None:
        self._syntax = syntax
        self._openings = openings if declared else None
        self._bare = syntax.bare if declared else ""
        self._newlines = syntax.newlines if declared else 0
        self._reasoning = reasoning
        self._closings = tuple(delimiters.closing for delimiters in reasoning)
        self._declared = declared
        self._in_reasoning = in_reasoning
        self._phase = START
        self._pending = ""
        """Text that has not been emitted yet."""
        self._scan = 0
        """Position in the pending text before which no call begins."""
        self._skip = 0
        """Line breaks that may still follow as part of the last delimiter."""
        self._blank = True
        """True if there was no text since the start, the end of reasoning, or the last call."""
        self._first = True
        """True if there was only white space since the start or the end of reasoning."""
        self._waiting = False
        """True while a call is held back."""
        self._calls = 0
        self._problems: list[str] = []
        self._deltas: list[Delta] = []

    def push(self, text: str) -> Sequence[Delta]:
        """Append text and return the deltas that no later text can change."""
        self._pending += text
        if self._waiting and len(self._pending) > RESCAN_THRESHOLD and not CALL_END_CHARACTERS.search(text):
            return ()
        self._advance(final=False)
        return self._take_deltas()

    def finish(self) -> tuple[Sequence[Delta], str]:
        """End the text: returns the deltas that were held back, and the problem (empty if none)."""
        self._advance(final=True)
        return self._take_deltas(), summarize_problems(self._problems)

    def _take_deltas(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return deltas

    def _advance(self, *, final: bool) -> None:
        """Parse the pending text as far as it is certain."""
        steps = (self._read_start, self._read_reasoning, self._read_text)
        while steps[self._phase](final=final):
            pass

    def _read_start(self, *, final: bool) -> bool:
        """Detect reasoning at the start; false if the text is too short to decide."""
        start = self._pending.lstrip()
        self._phase = REASONING if self._in_reasoning else TEXT
        self._skip = 1 if self._in_reasoning else self._syntax.leading_newlines
        for opening, closing in self._reasoning:
            if start.startswith(opening):
                self._pending = start[len(opening) :]
                self._phase, self._skip, self._closings = REASONING, 1, (closing,)
            elif not final and opening.startswith(start):
                self._phase = START
                return False
        return True

    def _read_reasoning(self, *, final: bool) -> bool:
        self._skip_newlines()
        found = [(at, closing) for closing in self._closings if (at := self._pending.find(closing)) >= 0]
        if found:
            at, closing = min(found)
            self._emit_reasoning(strip_trailing_newlines(self._pending[:at], 1))
            self._pending = self._pending[at + len(closing) :]
            self._phase, self._skip = TEXT, NEWLINES_AFTER_REASONING
            return True
        cut = len(self._pending) if final else partial_delimiter_start(self._pending, self._closings, 0, 1)
        self._emit_reasoning(self._pending[:cut])
        self._pending = self._pending[cut:]
        return False

    def _read_text(self, *, final: bool) -> bool:
        """Parse up to the end of the next call; false if more text is needed."""
        self._skip_newlines()
        at = self._next_call()
        if at < 0:
            cut = (
                len(self._pending)
                if final
                else partial_delimiter_start(self._pending, self._syntax.openings if self._openings else (), self._scan, self._newlines)
            )
            self._emit_pending(cut, final=final)
            return False
        block = self._read_call_at(at, final=final)
        self._waiting = block is None
        if block is None:
            self._emit_pending(newlines_before(self._pending, at, self._newlines), final=False)
            return False
        if block.problem:
            self._problems.append(block.problem)
        self._first = False
        if block.calls:
            self._emit_calls(at, block)
        else:
            self._scan = block.end
        return True

    def _next_call(self) -> int:
        """Return the position where a call may begin, or -1."""
        if self._first:
            start = self._pending.lstrip()
            if start and start[0] in self._bare:
                return len(self._pending) - len(start)
        found = self._openings.search(self._pending, self._scan) if self._openings else None
        return found.start() if found else -1

    def _read_call_at(self, at: int, *, final: bool) -> ParsedCalls | None:
        """Parse the call that may begin here; None while more text is needed."""
        try:
            return self._syntax.read(self._pending, at, self._declared, final=final)
        except IncompleteCall:
            broken = MalformedCall("it is incomplete", len(self._pending))
            return self._malformed_block(at, broken, final=True) if final else None
        except MalformedCall as error:
            return self._malformed_block(at, error, final=final)

    def _malformed_block(self, at: int, error: MalformedCall, *, final: bool) -> ParsedCalls | None:
        """Return a malformed call as text: all up to the closing delimiter, or the opening one alone if there is no closing one."""
        problem = f"a tool call does not parse: {error}"
        found = self._openings.match(self._pending, at) if self._openings else None
        start = found.end() if found else at + 1
        closing = self._syntax.closing
        if not closing or not found:
            return ParsedCalls(start, (), problem)
        end = self._pending.find(closing, error.position)
        if end < 0 and not final:
            return None
        end = self._pending.find(closing, start) if end < 0 else end
        return ParsedCalls(end + len(closing) if end >= 0 else len(self._pending), (), problem)

    def _skip_newlines(self) -> None:
        while self._skip and self._pending.startswith("\n"):
            self._pending = self._pending[1:]
            self._skip -= 1
        if self._pending:
            self._skip = 0

    def _emit_pending(self, cut: int, *, final: bool) -> None:
        """Emit the pending text up to `cut`, unless it is white space that may be part of a call."""
        text = self._pending[:cut]
        if self._blank and self._declared and (not text or text.isspace()) and not (final and not self._calls):
            if final:
                self._pending = ""
            return
        self._pending = self._pending[cut:]
        self._scan = max(0, self._scan - cut)
        self._emit_text(text)

    def _emit_reasoning(self, text: str) -> None:
        if text:
            self._deltas.append(Delta(reasoning=text))

    def _emit_text(self, text: str) -> None:
        if text:
            self._blank = False
            self._first = self._first and text.isspace()
            self._deltas.append(Delta(text=text))

    def _emit_calls(self, at: int, block: ParsedCalls) -> None:
        before = self._pending[: newlines_before(self._pending, at, self._newlines)]
        if not (self._blank and before.isspace()):
            self._emit_text(before)
        for call in block.calls:
            self._deltas.append(Delta(call=self._calls, name=call.name, arguments=call.arguments))
            self._calls += 1
        self._pending = self._pending[block.end :]
        self._scan = 0
        self._blank = True


CALL_END_CHARACTERS = re.compile(r"[>}\])`;]")
"""Last characters of closing delimiters, objects and lists."""


def declared_tools(tools: Sequence[ToolDefinition]) -> dict[str, Mapping[str, Any]]:
    """Return argument schemas of the tools by name."""
    functions = [tool["function"] for tool in tools]
    return {function["name"]: function.get("parameters") or {} for function in functions}


def compile_delimiters(delimiters: Sequence[str]) -> re.Pattern[str] | None:
    """Return a pattern that matches any of these delimiters; None if there are none."""
    return re.compile("|".join(map(re.escape, delimiters))) if delimiters else None


def partial_delimiter_start(text: str, delimiters: Sequence[str], start: int, newlines: int) -> int:
    """Return the start of a trailing text that may become a delimiter, with up to `newlines` line breaks before it."""
    at = len(text)
    for delimiter in delimiters:
        found = text.find(delimiter[0], max(start, len(text) - len(delimiter) + 1))
        while found >= 0 and not delimiter.startswith(text[found:]):
            found = text.find(delimiter[0], found + 1)
        at = min(at, found) if found >= 0 else at
    return newlines_before(text, at, newlines)


def newlines_before(text: str, at: int, limit: int) -> int:
    """Return the start of the line breaks before `at`, of which at most `limit` count."""
    start = at
    while start and at - start < limit and text[start - 1] == "\n":
        start -= 1
    return start


def strip_trailing_newlines(text: str, limit: int) -> str:
    """Return the text without up to `limit` line breaks at its end."""
    return text[: newlines_before(text, len(text), limit)]


def join_deltas(deltas: Sequence[Delta], problem: str) -> Answer:
    """Merge all deltas of an answer."""
    calls: list[ToolCall] = []
    for delta in deltas:
        if delta.call is None:
            continue
        if delta.call == len(calls):
            calls.append(ToolCall(name=delta.name, arguments=delta.arguments))
        else:
            calls[-1] = ToolCall(name=calls[-1].name, arguments=calls[-1].arguments + delta.arguments)
    return Answer(
        reasoning="".join([delta.reasoning for delta in deltas]),
        text="".join([delta.text for delta in deltas]),
        tool_calls=tuple(calls),
        problem=problem,
    )


def summarize_problems(problems: Sequence[str]) -> str:
    """Return the first problem and the count of further ones."""
    if len(problems) > 1:
        return f"{problems[0]} (and {len(problems) - 1} more)"
    return problems[0] if problems else ""
