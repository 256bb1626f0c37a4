"""gpt-oss (harmony): messages on channels.

Analysis is reasoning, final is text, commentary to a function is a tool call.
A completion is `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>`, or it
ends with ` to=functions.NAME<|channel|>commentary json<|message|>{…}<|call|>`. The token that ends the completion may
be missing from its text. A line break separates two messages of the same kind.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from areal_actors.tokenization.tool_parsers.base import (
    AnswerFormat,
    DeclaredTools,
    Delta,
    StreamParser,
    ToolCall,
    ToolDefinition,
    call_problem,
    declared_tools,
    withheld_call,
)
from areal_actors.tokenization.tool_parsers.grammar import Grammar, alternatives
from areal_actors.tokenization.tool_parsers.json_calls import check_name, read_arguments, skip_space
from areal_actors.tokenization.tool_parsers.stream_parser import partial_delimiter_start
from areal_actors.tokenization.tool_parsers.syntax import IncompleteCall, MalformedCall

CHANNEL, MESSAGE, START = "<|channel|>", "<|message|>", "<|start|>"
END_TOKENS = ("<|end|>", "<|return|>", "<|call|>")
BOUNDARIES = (*END_TOKENS, START, CHANNEL)
"""Tokens that end a message; the last two also begin the next one."""
BOUNDARY = re.compile("|".join(map(re.escape, BOUNDARIES)))
HEADER = re.compile(
    r"\s*(?P<before>(?:<\|start\|>\s*assistant|to=)[^<]*)?<\|channel\|>\s*(?P<channel>analysis|commentary|final)\b(?P<after>[^<]*)"
    r"(?:<\|constrain\|>[^<]*)?<\|message\|>"
)
RECIPIENT = re.compile(r"\bto=(\S+)")
HEADER_STARTS = (START, CHANNEL, "to=")
FUNCTIONS = "functions."


class GptOss(AnswerFormat):
    """The harmony format."""

    name = "gpt_oss"
    special_tokens = True

    def stream(
        self, tools: Sequence[ToolDefinition], *, in_reasoning: bool = False, withheld: frozenset[str] = frozenset()
    ) -> StreamParser:
        """Return a parser for a completion that is being sampled."""
        return HarmonyStreamParser(declared_tools(tools), withheld, in_reasoning=in_reasoning)

    # Messages have channels without tools too
    def _is_plain(self, text: str, tools: Sequence[ToolDefinition]) -> bool:  # noqa: ARG002
        return "<|" not in text

    # The models make no parallel calls
    def _grammar(self, grammar: Grammar, declared: DeclaredTools, *, parallel: bool, in_reasoning: bool) -> str:  # noqa: ARG002
        literal, delimiter = grammar.literal, grammar.delimiter
        head = f"{delimiter(CHANNEL)} {literal('commentary json')} {delimiter(MESSAGE)}"
        calls = [
            f"{literal(f' to={FUNCTIONS}{name}')} {head} {grammar.arguments(parameters)}"
            for name, parameters in declared.items()
        ]
        rest = f"{grammar.until('<|end|>')} {delimiter(START)} {literal('assistant')}"
        if in_reasoning:
            return f"{rest} {alternatives(calls)}"
        return f"({delimiter(CHANNEL)} {literal('analysis')} {delimiter(MESSAGE)} {rest})? {alternatives(calls)}"


class HarmonyStreamParser(StreamParser):
    """Parses a completion while it is sampled."""

    def __init__(self, declared: DeclaredTools, withheld: frozenset[str], *, in_reasoning: bool) -> None:
        super().__init__(declared, withheld)
        self._state = "reasoning" if in_reasoning else "header"
        """Part that is being parsed: header, reasoning, text, or call."""
        self._header = ""
        """Header text of the call being parsed."""
        self._recipient = ""
        """Function of the call being parsed, with or without its namespace."""
        self._emitted: set[str] = set()
        """Kinds, reasoning and text, of which something was emitted."""
        self._on_new_line = False
        """True if a line break has to precede the message's text."""

    def _step(self, *, final: bool) -> bool:
        if self._state == "header":
            return self._read_header(final=final)
        return self._read_call(final=final) if self._state == "call" else self._read_body(final=final)

    def _read_header(self, *, final: bool) -> bool:
        """Parse the next message's header; without a header it is text."""
        end = self._pending.find(MESSAGE)
        if end < 0 and not final and may_be_header(self._pending):
            return False
        if final and not self._pending:
            return False
        header = HEADER.match(self._pending) if end >= 0 else None
        if header is None:
            self._begin_message("text", on_new_line=False)
            if self._pending.lstrip().startswith(HEADER_STARTS[:2]):
                # An unknown header stays in the text, or its delimiters would be parsed as those of the next message.
                self._emit_until(end + len(MESSAGE) if end >= 0 else len(self._pending))
            return True
        self._header, self._pending = header[0], self._pending[header.end() :]
        recipient = RECIPIENT.search(header["before"] or "") or RECIPIENT.search(header["after"])
        self._recipient = recipient[1] if recipient else ""
        self._begin_message(
            "call" if recipient else "reasoning" if header["channel"] == "analysis" else "text", on_new_line=True
        )
        return True

    def _read_body(self, *, final: bool) -> bool:
        """Emit a message's text as it arrives."""
        boundary = BOUNDARY.search(self._pending)
        if boundary is None:
            self._emit_until(len(self._pending) if final else partial_delimiter_start(self._pending, BOUNDARIES))
            return False
        self._emit_until(boundary.start())
        self._pending = self._pending[len(boundary[0]) if boundary[0] in END_TOKENS else 0 :]
        self._state = "header"
        return True

    def _read_call(self, *, final: bool) -> bool:
        """Emit a call once it is complete."""
        boundary = BOUNDARY.search(self._pending)
        if boundary is None and not final:
            return False
        end = boundary.start() if boundary else len(self._pending)
        closing = boundary[0] if boundary and boundary[0] in END_TOKENS else ""
        body, self._pending = self._pending[:end], self._pending[end + len(closing) :]
        try:
            call = self._parse_call(body)
            problem = withheld_call(call.name) if call.name in self._withheld else ""
        except MalformedCall as error:
            call, problem = None, call_problem(error)
        if call is not None and not problem:
            self._emit_call(call)
        else:
            if self._declared:
                self._problems.append(problem)
            self._begin_message("text", on_new_line=False)
            self._emit(self._header + body + closing)
        self._state = "header"
        return True

    def _parse_call(self, body: str) -> ToolCall:
        """Return the call with these arguments.

        Raises:
            MalformedCall: they are not a JSON object, or the recipient is not a name.
        """
        name = self._recipient.removeprefix(FUNCTIONS)
        if not self._declared:
            raise MalformedCall("there are no tools", 0)
        check_name(name, self._declared, 0)
        try:
            arguments, end = read_arguments(body, skip_space(body, 0))
        except IncompleteCall:
            raise MalformedCall("it is incomplete", len(body)) from None
        if skip_space(body, end) < len(body):
            raise MalformedCall("there is text after its arguments", end)
        return ToolCall(name=name, arguments=arguments)

    def _begin_message(self, kind: str, *, on_new_line: bool) -> None:
        self._state = kind
        self._on_new_line = on_new_line and kind in self._emitted

    def _emit_until(self, end: int) -> None:
        self._emit(self._pending[:end])
        self._pending = self._pending[end:]

    def _emit(self, text: str) -> None:
        """Append to the reasoning or the text."""
        if not text:
            return
        if self._on_new_line:
            text, self._on_new_line = "\n" + text, False
        self._emitted.add(self._state)
        self._deltas.append(Delta(reasoning=text) if self._state == "reasoning" else Delta(text=text))


def may_be_header(text: str) -> bool:
    """True if the text begins with a header or with the beginning of one."""
    start = text.lstrip()
    return any(start.startswith(head) or head.startswith(start) for head in HEADER_STARTS)
