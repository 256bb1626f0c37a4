"""gpt-oss (harmony): messages on channels. Analysis is reasoning, final is text, commentary to a function is a tool call.

A completion is `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>`, or it ends with
` to=functions.NAME<|channel|>commentary json<|message|>{…}<|call|>`. What ends the completion need not stand in its text. Of two
messages of the same kind the second begins on a line of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from areal_actors.answer_formats.base import Answer, Piece, Tool
from areal_actors.answer_formats.grammar import Grammar, alternatives
from areal_actors.answer_formats.json_calls import check_declared, read_arguments, skip_space
from areal_actors.answer_formats.reading import declared_of, held_from, joined, told
from areal_actors.answer_formats.syntax import Declared, Incomplete, Malformed
from areal_actors.errors import RequestError
from areal_actors.values import Constraint

CHANNEL, MESSAGE, START = "<|channel|>", "<|message|>", "<|start|>"
ENDINGS = ("<|end|>", "<|return|>", "<|call|>")
BORDERS = (*ENDINGS, START, CHANNEL)
"""What may end a message; the last two begin the next one."""
BORDER = re.compile("|".join(map(re.escape, BORDERS)))
HEADER = re.compile(
    r"\s*(?P<before>(?:<\|start\|>\s*assistant|to=)[^<]*)?<\|channel\|>\s*(?P<channel>analysis|commentary|final)\b(?P<after>[^<]*)"
    r"(?:<\|constrain\|>[^<]*)?<\|message\|>"
)
RECIPIENT = re.compile(r"\bto=(\S+)")
HEADS = (START, CHANNEL, "to=")
FUNCTIONS = "functions."


class GptOss:
    """The harmony format."""

    name = "gpt_oss"
    special_tokens = True

    def parse(self, text: str, tools: Sequence[Tool], *, in_reasoning: bool = False) -> Answer:
        """Take a whole completion apart."""
        if not in_reasoning and "<|" not in text:
            return Answer(text=text)
        stream = HarmonyStream(declared_of(tools), in_reasoning=in_reasoning)
        pieces = stream.push(text)
        rest, problem = stream.finish()
        return joined([*pieces, *rest], problem)

    def stream(self, tools: Sequence[Tool], *, in_reasoning: bool = False) -> HarmonyStream:
        """Take a completion apart while it is sampled."""
        return HarmonyStream(declared_of(tools), in_reasoning=in_reasoning)

    def constraint(self, tools: Sequence[Tool], *, parallel: bool, in_reasoning: bool = False) -> Constraint:  # noqa: ARG002
        """Optional analysis (its rest, if the prompt has opened it), then one call: these models never make two at once.

        Raises:
            RequestError: there are no tools.
        """
        if not tools:
            raise RequestError("a tool call is asked for and no tools are given: add tools, or set tool_choice to auto", field="tools")
        grammar = Grammar()
        literal, mark = grammar.literal, grammar.mark
        head = f"{mark(CHANNEL)} {literal('commentary json')} {mark(MESSAGE)}"
        calls = [
            f"{literal(f' to={FUNCTIONS}{name}')} {head} {grammar.arguments(parameters)}" for name, parameters in declared_of(tools).items()
        ]
        rest = f"{grammar.until('<|end|>')} {mark(START)} {literal('assistant')}"
        if in_reasoning:
            return grammar.constraint(f"{rest} {alternatives(calls)}")
        return grammar.constraint(f"({mark(CHANNEL)} {literal('analysis')} {mark(MESSAGE)} {rest})? {alternatives(calls)}")


class HarmonyStream:
    """Takes a completion apart while it is sampled."""

    def __init__(self, declared: Declared, *, in_reasoning: bool) -> None:
        self._declared = declared
        self._pending = ""
        self._kind = "reasoning" if in_reasoning else "header"
        """What is being read: header, reasoning, text, or call."""
        self._header = ""
        """Of the call being read, as it was written."""
        self._recipient = ""
        self._said = dict.fromkeys(("reasoning", "text"), False)
        """Whether there was any yet."""
        self._apart = False
        """The message being read goes on a line of its own."""
        self._calls = 0
        self._problems: list[str] = []
        self._pieces: list[Piece] = []

    def push(self, text: str) -> Sequence[Piece]:
        """Take the next text and return what is now certain."""
        self._pending += text
        return self._advance(final=False)

    def finish(self) -> tuple[Sequence[Piece], str]:
        """No more text comes: what was held back, and the problem (empty if none)."""
        return self._advance(final=True), told(self._problems)

    def _advance(self, *, final: bool) -> list[Piece]:
        steps = {"header": self._read_header, "reasoning": self._read_body, "text": self._read_body, "call": self._read_call}
        while steps[self._kind](final=final):
            pass
        pieces, self._pieces = self._pieces, []
        return pieces

    def _read_header(self, *, final: bool) -> bool:
        """Find out what the next message is; what has no header is text."""
        end = self._pending.find(MESSAGE)
        if end < 0 and not final and may_be_header(self._pending):
            return False
        if final and not self._pending:
            return False
        header = HEADER.match(self._pending) if end >= 0 else None
        if header is None:
            self._open("text", apart=False)
            if self._pending.lstrip().startswith(HEADS[:2]) and end >= 0:
                # A header that says nothing we know stays, or its marks would be taken for the next one's.
                self._say(self._pending[: end + len(MESSAGE)])
                self._pending = self._pending[end + len(MESSAGE) :]
            elif self._pending.lstrip().startswith(HEADS[:2]):
                self._say(self._pending)
                self._pending = ""
            return True
        self._header, self._pending = header[0], self._pending[header.end() :]
        recipient = RECIPIENT.search(header["before"] or "") or RECIPIENT.search(header["after"])
        self._recipient = recipient[1] if recipient else ""
        self._open("call" if recipient else "reasoning" if header["channel"] == "analysis" else "text", apart=True)
        return True

    def _read_body(self, *, final: bool) -> bool:
        """Say what a message says, as it comes."""
        border = BORDER.search(self._pending)
        if border:
            self._say(self._pending[: border.start()])
            self._pending = self._pending[border.end() if border[0] in ENDINGS else border.start() :]
            self._kind = "header"
            return True
        cut = len(self._pending) if final else held_from(self._pending, BORDERS, 0, 0)
        self._say(self._pending[:cut])
        self._pending = self._pending[cut:]
        return False

    def _read_call(self, *, final: bool) -> bool:
        """Hold a call back until it is complete."""
        border = BORDER.search(self._pending)
        if border is None and not final:
            return False
        end = border.start() if border else len(self._pending)
        closing = border[0] if border and border[0] in ENDINGS else ""
        body, self._pending = self._pending[:end], self._pending[end + len(closing) :]
        try:
            arguments = self._arguments(body)
        except Malformed as error:
            if self._declared:
                self._problems.append(f"a tool call does not parse: {error}")
            self._open("text", apart=False)
            self._say(self._header + body + closing)
        else:
            self._pieces.append(Piece(call=self._calls, name=self._recipient.removeprefix(FUNCTIONS), arguments=arguments))
            self._calls += 1
        self._kind = "header"
        return True

    def _arguments(self, body: str) -> str:
        """The arguments of a call.

        Raises:
            Malformed: they are no JSON object, or the call goes to no declared function.
        """
        name = self._recipient.removeprefix(FUNCTIONS) if self._recipient.startswith(FUNCTIONS) else self._recipient
        check_declared(name, self._declared, 0)
        start = skip_space(body, 0)
        try:
            arguments, end = read_arguments(body, start)
        except Incomplete:
            raise Malformed("it is not complete", len(body)) from None
        if skip_space(body, end) < len(body):
            raise Malformed("something follows its arguments", end)
        return arguments

    def _open(self, kind: str, *, apart: bool) -> None:
        self._kind = kind
        self._apart = apart and self._said.get(kind, False)

    def _say(self, text: str) -> None:
        """Add to the reasoning or the text."""
        if not text:
            return
        if self._apart:
            text, self._apart = "\n" + text, False
        self._said[self._kind] = True
        self._pieces.append(Piece(reasoning=text) if self._kind == "reasoning" else Piece(text=text))


def may_be_header(text: str) -> bool:
    """Whether a header begins here, or still may."""
    start = text.lstrip()
    return any(start.startswith(head) or head.startswith(start) for head in HEADS)
