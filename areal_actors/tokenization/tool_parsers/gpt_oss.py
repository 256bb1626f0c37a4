"""gpt-oss (harmony): messages on channels. Analysis is reasoning, final is text, commentary to a function is a tool call.

A completion is `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>`, or it ends with
` to=functions.NAME<|channel|>commentary json<|message|>{…}<|call|>`. The token that ends the completion may be missing from its
text. A line break separates two messages of the same kind.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from areal_actors.core.errors import RequestError
from areal_actors.core.values import Constraint
from areal_actors.tokenization.tool_parsers.base import Answer, Delta, ToolDefinition
from areal_actors.tokenization.tool_parsers.grammar import Grammar, alternatives
from areal_actors.tokenization.tool_parsers.json_calls import check_declared, read_arguments, skip_space
from areal_actors.tokenization.tool_parsers.stream_parser import declared_tools, join_deltas, partial_delimiter_start, summarize_problems
from areal_actors.tokenization.tool_parsers.syntax import DeclaredTools, IncompleteCall, MalformedCall

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


class GptOss:
    """The harmony format."""

    name = "gpt_oss"
    special_tokens = True

    def parse(self, text: str, tools: Sequence[ToolDefinition], *, in_reasoning: bool = False) -> Answer:
        """Parse a whole completion."""
        if not in_reasoning and "<|" not in text:
            return Answer(text=text)
        stream = HarmonyStreamParser(declared_tools(tools), in_reasoning=in_reasoning)
        deltas = stream.push(text)
        rest, problem = stream.finish()
        return join_deltas([*deltas, *rest], problem)

    def stream(self, tools: Sequence[ToolDefinition], *, in_reasoning: bool = False) -> HarmonyStreamParser:
        """Return a parser for a completion that is being sampled."""
        return HarmonyStreamParser(declared_tools(tools), in_reasoning=in_reasoning)

    def constraint(self, tools: Sequence[ToolDefinition], *, parallel: bool, in_reasoning: bool = False) -> Constraint:  # noqa: ARG002
        """Return a grammar of optional analysis (its rest, if the prompt has opened it), then one call; the models make no parallel ones.

        Raises:
            RequestError: there are no tools.
        """
        if not tools:
            raise RequestError("a tool call is required but there are no tools: add tools, or set tool_choice to auto", field="tools")
        grammar = Grammar()
        literal, delimiter = grammar.literal, grammar.delimiter
        head = f"{delimiter(CHANNEL)} {literal('commentary json')} {delimiter(MESSAGE)}"
        calls = [
            f"{literal(f' to={FUNCTIONS}{name}')} {head} {grammar.arguments(parameters)}"
            for name, parameters in declared_tools(tools).items()
        ]
        rest = f"{grammar.until('<|end|>')} {delimiter(START)} {literal('assistant')}"
        if in_reasoning:
            return grammar.constraint(f"{rest} {alternatives(calls)}")
        return grammar.constraint(f"({delimiter(CHANNEL)} {literal('analysis')} {delimiter(MESSAGE)} {rest})? {alternatives(calls)}")


class HarmonyStreamParser:
    """Parses a completion while it is sampled."""

    def __init__(self, declared: DeclaredTools, *, in_reasoning: bool) -> None:
        self._declared = declared
        self._pending = ""
        self._state = "reasoning" if in_reasoning else "header"
        """Part that is being parsed: header, reasoning, text, or call."""
        self._header = ""
        """Header text of the call being parsed."""
        self._recipient = ""
        self._emitted = dict.fromkeys(("reasoning", "text"), False)
        """True for each kind of which some text was emitted."""
        self._on_new_line = False
        """True if a line break has to precede the message's text."""
        self._calls = 0
        self._problems: list[str] = []
        self._deltas: list[Delta] = []

    def push(self, text: str) -> Sequence[Delta]:
        """Append text and return the deltas that no later text can change."""
        self._pending += text
        return self._advance(final=False)

    def finish(self) -> tuple[Sequence[Delta], str]:
        """End the text: returns the deltas that were held back, and the problem (empty if none)."""
        return self._advance(final=True), summarize_problems(self._problems)

    def _advance(self, *, final: bool) -> list[Delta]:
        steps = {"header": self._read_header, "reasoning": self._read_body, "text": self._read_body, "call": self._read_call}
        while steps[self._state](final=final):
            pass
        deltas, self._deltas = self._deltas, []
        return deltas

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
            if self._pending.lstrip().startswith(HEADER_STARTS[:2]) and end >= 0:
                # An unknown header stays in the text, or its delimiters would be parsed as those of the next message.
                self._emit(self._pending[: end + len(MESSAGE)])
                self._pending = self._pending[end + len(MESSAGE) :]
            elif self._pending.lstrip().startswith(HEADER_STARTS[:2]):
                self._emit(self._pending)
                self._pending = ""
            return True
        self._header, self._pending = header[0], self._pending[header.end() :]
        recipient = RECIPIENT.search(header["before"] or "") or RECIPIENT.search(header["after"])
        self._recipient = recipient[1] if recipient else ""
        self._begin_message("call" if recipient else "reasoning" if header["channel"] == "analysis" else "text", on_new_line=True)
        return True

    def _read_body(self, *, final: bool) -> bool:
        """Emit a message's text as it arrives."""
        boundary = BOUNDARY.search(self._pending)
        if boundary:
            self._emit(self._pending[: boundary.start()])
            self._pending = self._pending[boundary.end() if boundary[0] in END_TOKENS else boundary.start() :]
            self._state = "header"
            return True
        cut = len(self._pending) if final else partial_delimiter_start(self._pending, BOUNDARIES, 0, 0)
        self._emit(self._pending[:cut])
        self._pending = self._pending[cut:]
        return False

    def _read_call(self, *, final: bool) -> bool:
        """Emit a call once it is complete."""
        boundary = BOUNDARY.search(self._pending)
        if boundary is None and not final:
            return False
        end = boundary.start() if boundary else len(self._pending)
        closing = boundary[0] if boundary and boundary[0] in END_TOKENS else ""
        body, self._pending = self._pending[:end], self._pending[end + len(closing) :]
        try:
            arguments = self._arguments(body)
        except MalformedCall as error:
            if self._declared:
                self._problems.append(f"a tool call does not parse: {error}")
            self._begin_message("text", on_new_line=False)
            self._emit(self._header + body + closing)
        else:
            self._deltas.append(Delta(call=self._calls, name=self._recipient.removeprefix(FUNCTIONS), arguments=arguments))
            self._calls += 1
        self._state = "header"
        return True

    def _arguments(self, body: str) -> str:
        """Return the arguments of a call.

        Raises:
            MalformedCall: they are not a JSON object, or no declared function has this name.
        """
        name = self._recipient.removeprefix(FUNCTIONS) if self._recipient.startswith(FUNCTIONS) else self._recipient
        check_declared(name, self._declared, 0)
        start = skip_space(body, 0)
        try:
            arguments, end = read_arguments(body, start)
        except IncompleteCall:
            raise MalformedCall("it is incomplete", len(body)) from None
        if skip_space(body, end) < len(body):
            raise MalformedCall("there is text after its arguments", end)
        return arguments

    def _begin_message(self, kind: str, *, on_new_line: bool) -> None:
        self._state = kind
        self._on_new_line = on_new_line and self._emitted.get(kind, False)

    def _emit(self, text: str) -> None:
        """Append to the reasoning or the text."""
        if not text:
            return
        if self._on_new_line:
            text, self._on_new_line = "\n" + text, False
        self._emitted[self._state] = True
        self._deltas.append(Delta(reasoning=text) if self._state == "reasoning" else Delta(text=text))


def may_be_header(text: str) -> bool:
    """True if the text begins with a header or with the beginning of one."""
    start = text.lstrip()
    return any(start.startswith(head) or head.startswith(start) for head in HEADER_STARTS)
