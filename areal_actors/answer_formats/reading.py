"""Takes a completion apart: reasoning first, then text with tool calls in it. The machine that most formats share.

What a format adds is its `CallSyntax`: the marks with which its calls begin, and how one is read from there. Nothing is decided
before it is certain, so a stream says piece by piece exactly what `parse` says of the whole:

- Reasoning opens at the very start (or in the prompt). Without its end, all is reasoning. One line break inside each of its
  marks belongs to the mark, and up to two behind it.
- Line breaks before a call belong to the call, as many as the family's template writes (`CallSyntax.newlines`); those that it
  writes at the start of an answer (`CallSyntax.leading`) belong to nobody. White space that alone stands before a call or
  follows one belongs to the call, too.
- A call comes out when it is complete and known to be well-formed; before, it is held back. One that is not stays text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from areal_actors.answer_formats.base import Answer, AnswerStream, Piece, Tool, ToolCall
from areal_actors.answer_formats.grammar import Grammar
from areal_actors.answer_formats.syntax import THINK, Block, CallSyntax, Declared, Incomplete, Malformed, ReasoningMarks
from areal_actors.errors import RequestError
from areal_actors.values import Constraint

PATIENCE = 256
"""Characters of a held call beyond which it is only looked at again when a character comes that may end it."""

AFTER_REASONING = 2
"""Line breaks behind the end of reasoning that belong to it."""

START, REASONING, TEXT = range(3)


class MarkedFormat:
    """An answer format made of a call syntax."""

    def __init__(self, name: str, syntax: CallSyntax, *, special_tokens: bool, reasoning: Sequence[ReasoningMarks] = THINK) -> None:
        self.name = name
        self.special_tokens = special_tokens
        self._syntax = syntax
        self._reasoning = tuple(reasoning)
        self._openings = tuple(marks.opening for marks in reasoning)
        self._marks = pattern_of(syntax.marks)

    def parse(self, text: str, tools: Sequence[Tool], *, in_reasoning: bool = False) -> Answer:
        """Take a whole completion apart."""
        if not in_reasoning and self._is_plain(text, tools):
            return Answer(text=text)
        stream = MarkedStream(self._syntax, self._marks, self._reasoning, declared_of(tools), in_reasoning=in_reasoning)
        pieces = stream.push(text)
        rest, problem = stream.finish()
        return joined([*pieces, *rest], problem)

    def stream(self, tools: Sequence[Tool], *, in_reasoning: bool = False) -> AnswerStream:
        """Take a completion apart while it is sampled."""
        return MarkedStream(self._syntax, self._marks, self._reasoning, declared_of(tools), in_reasoning=in_reasoning)

    def constraint(self, tools: Sequence[Tool], *, parallel: bool, in_reasoning: bool = False) -> Constraint:
        """Optional reasoning (its rest, if the prompt has opened it), then one call, or more if `parallel`.

        Raises:
            RequestError: there are no tools.
        """
        if not tools:
            raise RequestError("a tool call is asked for and no tools are given: add tools, or set tool_choice to auto", field="tools")
        grammar = Grammar()
        calls = self._syntax.grammar(grammar, declared_of(tools), parallel=parallel)
        thoughts = [grammar.until(marks.closing) + r" /\n{0,2}/" for marks in self._reasoning]
        if in_reasoning and thoughts:
            return grammar.constraint(f"({' | '.join(thoughts)}) {calls}")
        opened = [f"{grammar.mark(marks.opening)} {thought}" for marks, thought in zip(self._reasoning, thoughts, strict=True)]
        return grammar.constraint(f"({' | '.join(opened)})? {calls}" if opened else calls)

    def _is_plain(self, text: str, tools: Sequence[Tool]) -> bool:
        """Neither reasoning nor calls begin in this text."""
        start = text.lstrip()
        if start.startswith(self._openings) or (self._syntax.leading and text.startswith("\n")):
            return False
        return not tools or not ((self._marks and self._marks.search(text)) or (start and start[0] in self._syntax.bare))


class MarkedStream:
    """Takes a completion apart while it is sampled."""

    def __init__(
        self,
        syntax: CallSyntax,
        marks: re.Pattern[str] | None,
        reasoning: Sequence[ReasoningMarks],
        declared: Declared,
        *,
        in_reasoning: bool,
    ) -> None:
        self._syntax = syntax
        self._marks = marks if declared else None
        self._bare = syntax.bare if declared else ""
        self._newlines = syntax.newlines if declared else 0
        self._reasoning = reasoning
        self._closings = tuple(marks.closing for marks in reasoning)
        self._declared = declared
        self._in_reasoning = in_reasoning
        self._phase = START
        self._pending = ""
        """Text that nothing has been said of yet."""
        self._scan = 0
        """Up to here no call begins in what is pending."""
        self._skip = 0
        """Line breaks that still belong to the mark before."""
        self._blank = True
        """No text came since the start, the end of reasoning, or the last call."""
        self._first = True
        """Nothing but white space came since the start or the end of reasoning."""
        self._waiting = False
        """A call is being held back."""
        self._calls = 0
        self._problems: list[str] = []
        self._pieces: list[Piece] = []

    def push(self, text: str) -> Sequence[Piece]:
        """Take the next text and return what is now certain."""
        self._pending += text
        if self._waiting and len(self._pending) > PATIENCE and not ENDS_CALL.search(text):
            return ()
        self._advance(final=False)
        return self._taken()

    def finish(self) -> tuple[Sequence[Piece], str]:
        """No more text comes: what was held back, and the problem (empty if none)."""
        self._advance(final=True)
        return self._taken(), told(self._problems)

    def _taken(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def _advance(self, *, final: bool) -> None:
        """Go through what is pending as far as it is certain."""
        steps = (self._start, self._reason, self._read_text)
        while steps[self._phase](final=final):
            pass

    def _start(self, *, final: bool) -> bool:
        """Whether reasoning opens."""
        start = self._pending.lstrip()
        self._phase = REASONING if self._in_reasoning else TEXT
        self._skip = 1 if self._in_reasoning else self._syntax.leading
        for marks in self._reasoning:
            if start.startswith(marks.opening):
                self._pending = start[len(marks.opening) :]
                self._phase, self._skip, self._closings = REASONING, 1, (marks.closing,)
            elif not final and marks.opening.startswith(start):
                self._phase = START
                return False
        return True

    def _reason(self, *, final: bool) -> bool:
        self._skip_newlines()
        found = [(at, closing) for closing in self._closings if (at := self._pending.find(closing)) >= 0]
        if found:
            at, closing = min(found)
            self._say_reasoning(without_newlines(self._pending[:at], 1))
            self._pending = self._pending[at + len(closing) :]
            self._phase, self._skip = TEXT, AFTER_REASONING
            return True
        cut = len(self._pending) if final else held_from(self._pending, self._closings, 0, 1)
        self._say_reasoning(self._pending[:cut])
        self._pending = self._pending[cut:]
        return False

    def _read_text(self, *, final: bool) -> bool:
        """Read up to the end of the next call; false when there is none to be read yet."""
        self._skip_newlines()
        at = self._next_call()
        if at < 0:
            cut = (
                len(self._pending)
                if final
                else held_from(self._pending, self._syntax.marks if self._marks else (), self._scan, self._newlines)
            )
            self._release(cut, final=final)
            return False
        block = self._block(at, final=final)
        self._waiting = block is None
        if block is None:
            self._release(newlines_before(self._pending, at, self._newlines), final=False)
            return False
        if block.problem:
            self._problems.append(block.problem)
        self._first = False
        if block.calls:
            self._say_calls(at, block)
        else:
            self._scan = block.end
        return True

    def _next_call(self) -> int:
        """Where a call may begin; -1 if nowhere yet."""
        if self._first:
            start = self._pending.lstrip()
            if start and start[0] in self._bare:
                return len(self._pending) - len(start)
        found = self._marks.search(self._pending, self._scan) if self._marks else None
        return found.start() if found else -1

    def _block(self, at: int, *, final: bool) -> Block | None:
        """What begins here; None while that is uncertain."""
        try:
            return self._syntax.read(self._pending, at, self._declared, final=final)
        except Incomplete:
            broken = Malformed("it is not complete", len(self._pending))
            return self._text_block(at, broken, final=True) if final else None
        except Malformed as error:
            return self._text_block(at, error, final=final)

    def _text_block(self, at: int, error: Malformed, *, final: bool) -> Block | None:
        """What is no call and stays text: all up to the closing mark, or only the opening one where there is no such mark."""
        problem = f"a tool call does not parse: {error}"
        found = self._marks.match(self._pending, at) if self._marks else None
        start = found.end() if found else at + 1
        closing = self._syntax.closing
        if not closing or not found:
            return Block(start, (), problem)
        end = self._pending.find(closing, error.position)
        if end < 0 and not final:
            return None
        end = self._pending.find(closing, start) if end < 0 else end
        return Block(end + len(closing) if end >= 0 else len(self._pending), (), problem)

    def _skip_newlines(self) -> None:
        while self._skip and self._pending.startswith("\n"):
            self._pending = self._pending[1:]
            self._skip -= 1
        if self._pending:
            self._skip = 0

    def _release(self, cut: int, *, final: bool) -> None:
        """Say what is pending up to here, unless it is white space that may belong to a call."""
        text = self._pending[:cut]
        if self._blank and self._declared and (not text or text.isspace()) and not (final and not self._calls):
            if final:
                self._pending = ""
            return
        self._pending = self._pending[cut:]
        self._scan = max(0, self._scan - cut)
        self._say_text(text)

    def _say_reasoning(self, text: str) -> None:
        if text:
            self._pieces.append(Piece(reasoning=text))

    def _say_text(self, text: str) -> None:
        if text:
            self._blank = False
            self._first = self._first and text.isspace()
            self._pieces.append(Piece(text=text))

    def _say_calls(self, at: int, block: Block) -> None:
        before = self._pending[: newlines_before(self._pending, at, self._newlines)]
        if not (self._blank and before.isspace()):
            self._say_text(before)
        for call in block.calls:
            self._pieces.append(Piece(call=self._calls, name=call.name, arguments=call.arguments))
            self._calls += 1
        self._pending = self._pending[block.end :]
        self._scan = 0
        self._blank = True


ENDS_CALL = re.compile(r"[>}\])`;]")
"""The last character of every closing mark, object and list."""


def declared_of(tools: Sequence[Tool]) -> dict[str, Mapping[str, Any]]:
    """Names and argument schemas of the tools."""
    functions = [tool["function"] for tool in tools]
    return {function["name"]: function.get("parameters") or {} for function in functions}


def pattern_of(marks: Sequence[str]) -> re.Pattern[str] | None:
    """Finds the first of these marks; None if there are none."""
    return re.compile("|".join(map(re.escape, marks))) if marks else None


def held_from(text: str, marks: Sequence[str], start: int, newlines: int) -> int:
    """Where the part begins that may become a mark, with the line breaks before it that would be the mark's."""
    at = len(text)
    for mark in marks:
        found = text.find(mark[0], max(start, len(text) - len(mark) + 1))
        while found >= 0 and not mark.startswith(text[found:]):
            found = text.find(mark[0], found + 1)
        at = min(at, found) if found >= 0 else at
    return newlines_before(text, at, newlines)


def newlines_before(text: str, at: int, most: int) -> int:
    """Where the line breaks before `at` begin, at most so many."""
    start = at
    while start and at - start < most and text[start - 1] == "\n":
        start -= 1
    return start


def without_newlines(text: str, most: int) -> str:
    """The text without line breaks at its end, at most so many."""
    return text[: newlines_before(text, len(text), most)]


def joined(pieces: Sequence[Piece], problem: str) -> Answer:
    """All pieces of an answer together."""
    calls: list[ToolCall] = []
    for piece in pieces:
        if piece.call is None:
            continue
        if piece.call == len(calls):
            calls.append(ToolCall(name=piece.name, arguments=piece.arguments))
        else:
            calls[-1] = ToolCall(name=calls[-1].name, arguments=calls[-1].arguments + piece.arguments)
    return Answer(
        reasoning="".join([piece.reasoning for piece in pieces]),
        text="".join([piece.text for piece in pieces]),
        tool_calls=tuple(calls),
        problem=problem,
    )


def told(problems: Sequence[str]) -> str:
    """The first problem, and how many more there are."""
    if len(problems) > 1:
        return f"{problems[0]} (and {len(problems) - 1} more)"
    return problems[0] if problems else ""
