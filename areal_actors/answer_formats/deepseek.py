"""DeepSeek V3 and R1 (a name, then arguments in a fence), and V3.1 (a name and arguments), all calls between one pair of marks."""

from __future__ import annotations

from areal_actors.answer_formats.base import ToolCall
from areal_actors.answer_formats.grammar import Grammar, alternatives
from areal_actors.answer_formats.json_calls import check_declared, expect, read_arguments, skip_space
from areal_actors.answer_formats.syntax import Block, Declared, Incomplete

CALLS, END_OF_CALLS = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, END_OF_CALL, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
KIND, FENCE, END_OF_FENCE = "function", "```json", "```"


class DeepSeekCalls:
    """A list of calls; one that does not parse makes the whole list text."""

    marks: tuple[str, ...] = (CALLS,)
    bare = ""
    closing = END_OF_CALLS
    newlines = 0
    leading = 0

    def __init__(self, *, fenced: bool) -> None:
        self._fenced = fenced
        """How a call that is forced is written; both ways are read."""

    def read(self, text: str, at: int, declared: Declared, *, final: bool) -> Block:
        """Read the list."""
        position = at + len(CALLS)
        if not final and text.find(END_OF_CALLS, position) < 0:
            raise Incomplete
        calls: list[ToolCall] = []
        while not calls or not text.startswith(END_OF_CALLS, position):
            call, end = read_one(text, expect(text, skip_space(text, position), CALL), declared)
            calls.append(call)
            position = skip_space(text, end)
            if position == len(text):
                raise Incomplete
        return Block(position + len(END_OF_CALLS), tuple(calls))

    def grammar(self, grammar: Grammar, declared: Declared, *, parallel: bool) -> str:
        """Calls as the templates render them."""
        literal, mark = grammar.literal, grammar.mark
        bodies = []
        for name, parameters in declared.items():
            arguments = grammar.arguments(parameters)
            plain = f"{literal(name)} {mark(SEPARATOR)} {arguments}"
            head = f"{literal(KIND)} {mark(SEPARATOR)} {literal(f'{name}{chr(10)}{FENCE}{chr(10)}')}"
            bodies.append(f"{head} {arguments} {literal(f'{chr(10)}{END_OF_FENCE}')}" if self._fenced else plain)
        call = grammar.rule(f"{mark(CALL)} {alternatives(bodies)} {mark(END_OF_CALL)}")
        calls = grammar.repeated(call, literal("\n") if self._fenced else "", parallel=parallel)
        return f"{mark(CALLS)} {calls} {mark(END_OF_CALLS)}"


def read_one(text: str, at: int, declared: Declared) -> tuple[ToolCall, int]:
    """Read one call from behind its opening mark to behind its closing one.

    Raises:
        Malformed: it is none.
        Incomplete: the text ends too early.
    """
    mark = text.find("<", at)
    if mark < 0:
        raise Incomplete
    name, position = text[at:mark].strip(), expect(text, mark, SEPARATOR)
    fenced = name == KIND and not text.startswith("{", skip_space(text, position))
    if fenced:
        line = text.find("\n", position)
        if line < 0:
            raise Incomplete
        name = text[position:line].strip()
        position = expect(text, skip_space(text, line), FENCE)
    check_declared(name, declared, position)
    arguments, position = read_arguments(text, skip_space(text, position))
    position = skip_space(text, position)
    if fenced:
        position = skip_space(text, expect(text, position, END_OF_FENCE))
    return ToolCall(name=name, arguments=arguments), expect(text, position, END_OF_CALL)
