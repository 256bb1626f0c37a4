"""The parser that most formats share: reasoning first, then text with tool calls in it.

A format adds its `CallSyntax`. Nothing is emitted before it is
certain, so the deltas of a stream add up to exactly what `parse` returns for the whole text:

- Reasoning opens at the very start (or in the prompt). Without its closing delimiter, all is reasoning. One line break
  inside each delimiter is part of the delimiter, and up to two after the closing one. Where nothing follows the
  reasoning, a well-formed call between a format's delimiters is a call inside of it too: models forget to close their
  reasoning before they act.
- Line breaks before a call are part of the call, as many as the family's template writes (`CallSyntax.newlines`); those
  that it writes at the start of an answer (`CallSyntax.leading_newlines`) are dropped. If only white space precedes or
  follows a call, it is dropped as well.
- A call is emitted once it is complete and well-formed; until then it is held back. A malformed call stays text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from areal_actors.tokenization.tool_parsers.base import (
    AnswerFormat,
    DeclaredTools,
    Delta,
    StreamParser,
    ToolDefinition,
    call_problem,
    declared_tools,
    withheld_call,
)
from areal_actors.tokenization.tool_parsers.frames import NAME, AnswerFrame
from areal_actors.tokenization.tool_parsers.grammar import MARK, Grammar
from areal_actors.tokenization.tool_parsers.syntax import (
    CallSyntax,
    IncompleteCall,
    MalformedCall,
    ParsedCalls,
    ReasoningDelimiters,
)

RESCAN_THRESHOLD = 256
"""Length of a held call, in characters, from which it is parsed again only when a new character may end it."""
CALL_END_CHARACTERS = re.compile(r"[>}\])`;]")
"""Last characters of closing delimiters, objects and lists."""
NEWLINES_AFTER_REASONING = 2
"""Line breaks after the end of reasoning that are part of its delimiter."""

START, REASONING, TEXT = range(3)


class DelimitedFormat(AnswerFormat):
    """An answer format built from a call syntax."""

    def __init__(
        self, name: str, syntax: CallSyntax, reasoning: Sequence[ReasoningDelimiters], frame: AnswerFrame | None = None
    ) -> None:
        self.name = name
        self.frame = frame
        """Delimiters around the text of answers."""
        self.special_tokens = syntax.special_tokens
        self.syntax = syntax
        self.reasoning = tuple(reasoning)
        marks = (*syntax.marks, *(frame.marks if frame else ()))
        self.marks = (*marks, *[mark for pair in reasoning for mark in pair]) if marks else ()
        self.openings = re.compile("|".join(map(re.escape, syntax.openings))) if syntax.openings else None
        """Matches any opening delimiter of a call."""
        self._reasoning_openings = tuple(delimiters.opening for delimiters in reasoning)

    def stream(
        self, tools: Sequence[ToolDefinition], *, in_reasoning: bool = False, withheld: frozenset[str] = frozenset()
    ) -> StreamParser:
        """Return a parser for a completion that is being sampled."""
        return DelimitedStreamParser(self, declared_tools(tools), withheld, in_reasoning=in_reasoning)

    def _grammar(self, grammar: Grammar, declared: DeclaredTools, *, parallel: bool, in_reasoning: bool) -> str:
        calls = self._framed_calls(grammar, declared, parallel=parallel)
        thoughts = [_until_closing(grammar, closing) + r" /\n{0,2}/" for _, closing in self.reasoning]
        if in_reasoning and thoughts:
            return f"({' | '.join(thoughts)}) {calls}"
        opened = [
            f"{grammar.text(opening)} {thought}"
            for opening, thought in zip(self._reasoning_openings, thoughts, strict=True)
        ]
        return f"({' | '.join(opened)})? {calls}" if opened else calls

    def _framed_calls(self, grammar: Grammar, declared: DeclaredTools, *, parallel: bool) -> str:
        """Return an expression for calls with the delimiters that precede them."""
        frame, body = self.frame, self.syntax.body
        if frame is None or body is None:
            return self.syntax.grammar(grammar, declared, parallel=parallel)
        if NAME not in frame.before_calls:
            return f"{grammar.text(frame.before_calls)} {self.syntax.grammar(grammar, declared, parallel=parallel)}"

        def write_framed(grammar: Grammar, name: str, parameters: Mapping[str, Any]) -> str:
            return f"{grammar.text(frame.before_calls.replace(NAME, name))} {body(grammar, name, parameters)}"

        return self.syntax._replace(body=write_framed).grammar(grammar, declared, parallel=parallel)

    def _is_plain(self, text: str, tools: Sequence[ToolDefinition]) -> bool:
        start = text.lstrip()
        if (
            self.frame is not None
            or start.startswith(self._reasoning_openings)
            or (self.syntax.leading_newlines and text.startswith("\n"))
        ):
            return False
        return not tools or not (
            (self.openings and self.openings.search(text)) or (start and start[0] in self.syntax.bare)
        )


class DelimitedStreamParser(StreamParser):
    """Parses a completion of a delimited format while it is sampled."""

    def __init__(
        self, of: DelimitedFormat, declared: DeclaredTools, withheld: frozenset[str], *, in_reasoning: bool
    ) -> None:
        super().__init__(declared, withheld)
        self._syntax = of.syntax if declared else of.syntax._replace(openings=(), bare="", newlines=0)
        self._openings = of.openings if declared else None
        self._frame = of.frame.texts(declared) if of.frame else ()
        self._reasoning = of.reasoning
        self._opens_in_reasoning = self._openings if self._syntax.in_reasoning else None
        self._closings = tuple(closing for _, closing in of.reasoning)
        self._in_reasoning = in_reasoning
        self._phase = START
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

    def push(self, text: str) -> Sequence[Delta]:
        """Append text and return the deltas that no later text can change."""
        if self._waiting and len(self._pending) + len(text) > RESCAN_THRESHOLD and not CALL_END_CHARACTERS.search(text):
            self._pending += text
            return ()
        return super().push(text)

    def _step(self, *, final: bool) -> bool:
        if self._phase == START:
            return self._read_start(final=final)
        return self._read_reasoning(final=final) if self._phase == REASONING else self._read_text(final=final)

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
        places = [(at, closing) for closing in self._closings if (at := self._pending.find(closing)) >= 0]
        call = self._opens_in_reasoning.search(self._pending, self._scan) if self._opens_in_reasoning else None
        ends = min(places)[0] if places else len(self._pending)
        if call and call.start() < ends and not self._pending[ends + len(min(places)[1]) if places else ends :].strip():
            return self._read_call_in_reasoning(call.start(), final=final)
        self._scan = 0
        if places:
            at, closing = min(places)
            self._emit_reasoning(self._pending[: newlines_before(self._pending, at, 1)])
            self._pending = self._pending[at + len(closing) :]
            self._phase, self._skip = TEXT, NEWLINES_AFTER_REASONING
            return True
        openings = self._syntax.openings if self._opens_in_reasoning else ()
        cut = (
            len(self._pending) if final else partial_delimiter_start(self._pending, (*self._closings, *openings), 0, 1)
        )
        self._emit_reasoning(self._pending[:cut])
        self._pending = self._pending[cut:]
        return False

    def _read_call_in_reasoning(self, at: int, *, final: bool) -> bool:
        """Emit the call of an answer that ends with its reasoning; what is no call is reasoning.

        False until the answer ends.
        """
        if not final:
            self._emit_reasoning(self._pending[: newlines_before(self._pending, at, self._syntax.newlines)])
            self._pending = self._pending[newlines_before(self._pending, at, self._syntax.newlines) :]
            return False
        block = self._read_call_at(at, final=True)
        if block is None or not block.calls:
            self._scan = at + 1
            return True
        self._emit_reasoning(self._pending[: newlines_before(self._pending, at, self._syntax.newlines)])
        for call in block.calls:
            self._emit_call(call)
        self._pending = self._pending[block.end :]
        self._scan, self._skip = 0, 1
        if not self._pending.strip():
            self._pending = ""
        return True

    def _read_text(self, *, final: bool) -> bool:
        """Parse up to the end of the next call; false if more text is needed."""
        self._skip_newlines()
        at = self._next_call()
        if self._frame and self._drop_frame(at):
            return True
        if at < 0:
            delimiters = (*self._syntax.openings, *self._frame)
            cut = partial_delimiter_start(self._pending, delimiters, self._scan, self._syntax.newlines)
            self._emit_pending(len(self._pending) if final else cut, final=final)
            return False
        block = self._read_call_at(at, final=final)
        self._waiting = block is None
        if block is None:
            self._emit_pending(newlines_before(self._pending, at, self._syntax.newlines), final=False)
            return False
        if block.tool_call_error:
            self._problems.append(block.tool_call_error)
        self._first = False
        if block.calls:
            self._emit_calls(at, block)
        else:
            self._scan = block.end
        return True

    def _drop_frame(self, call: int) -> bool:
        """Drop the first delimiter around text that stands before the position of a call (if there is one).

        False if there is none.
        """
        places = [(place, -len(part)) for part in self._frame if (place := self._pending.find(part, self._scan)) >= 0]
        if not places or 0 <= call < min(places)[0]:
            return False
        at, length = min(places)
        if not (self._blank and self._pending[:at].isspace()):
            self._emit_text(self._pending[:at])
        self._pending, self._scan = self._pending[at - length :], 0
        return True

    def _next_call(self) -> int:
        """Return the position where a call may begin, or -1."""
        if self._first:
            start = self._pending.lstrip()
            if start and start[0] in self._syntax.bare:
                return len(self._pending) - len(start)
        match = self._openings.search(self._pending, self._scan) if self._openings else None
        return match.start() if match else -1

    def _read_call_at(self, at: int, *, final: bool) -> ParsedCalls | None:
        """Parse the call that may begin here; None while more text is needed."""
        if not final and self._syntax.closing and self._pending.find(self._syntax.closing, at) < 0:
            return None
        try:
            return self._without_withheld(self._syntax.read(self._pending, at, self._declared))
        except IncompleteCall as incomplete:
            if not final:
                return None
            if incomplete.at_end:
                return self._without_withheld(incomplete.at_end)
            return self._malformed_block(at, MalformedCall("it is incomplete", len(self._pending)), final=True)
        except MalformedCall as error:
            return self._malformed_block(at, error, final=final)

    def _without_withheld(self, block: ParsedCalls) -> ParsedCalls:
        """Return calls as text, with the reason, if one is of a tool that may not be called."""
        withheld = next((call.name for call in block.calls if call.name in self._withheld), None)
        return block if withheld is None else ParsedCalls(block.end, (), withheld_call(withheld))

    def _malformed_block(self, at: int, error: MalformedCall, *, final: bool) -> ParsedCalls | None:
        """Return a malformed call as text.

        It ends with the closing delimiter; without one the opening delimiter alone is text.
        """
        problem = call_problem(error)
        match = self._openings.match(self._pending, at) if self._openings else None
        start = match.end() if match else at + 1
        closing = self._syntax.closing
        if not closing or not match:
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
        before = self._pending[: newlines_before(self._pending, at, self._syntax.newlines)]
        if not (self._blank and before.isspace()):
            self._emit_text(before)
        for call in block.calls:
            self._emit_call(call)
        self._pending = self._pending[block.end :]
        self._scan = 0
        self._blank = True


def _until_closing(grammar: Grammar, closing: str) -> str:
    """Return an expression for reasoning and its closing delimiter, of which each part may be one token."""
    mark = MARK.search(closing)
    if mark is None:
        return grammar.until(closing)
    return f"{grammar.until(mark[0], before=closing[: mark.start()])} {grammar.text(closing[mark.end() :])}".strip()


def partial_delimiter_start(text: str, delimiters: Sequence[str], start: int = 0, newlines: int = 0) -> int:
    """Return the start of a trailing text that may become a delimiter, with up to `newlines` line breaks before it."""
    at = len(text)
    for delimiter in delimiters:
        place = text.find(delimiter[0], max(start, len(text) - len(delimiter) + 1))
        while place >= 0 and not delimiter.startswith(text[place:]):
            place = text.find(delimiter[0], place + 1)
        at = min(at, place) if place >= 0 else at
    return newlines_before(text, at, newlines)


def newlines_before(text: str, at: int, limit: int) -> int:
    """Return the start of the line breaks before `at`, of which at most `limit` count."""
    start = at
    while start and at - start < limit and text[start - 1] == "\n":
        start -= 1
    return start
