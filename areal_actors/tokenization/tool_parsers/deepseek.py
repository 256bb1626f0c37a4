"""DeepSeek V3 and R1 (a name, then arguments in a fence), V3.1 (a name and arguments); one pair of delimiters encloses all calls."""

from __future__ import annotations

from areal_actors.tokenization.tool_parsers.base import ToolCall
from areal_actors.tokenization.tool_parsers.grammar import Grammar, alternatives
from areal_actors.tokenization.tool_parsers.json_calls import check_declared, expect, read_arguments, skip_space
from areal_actors.tokenization.tool_parsers.syntax import DeclaredTools, IncompleteCall, ParsedCalls

CALLS, END_OF_CALLS = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, END_OF_CALL, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
KIND, FENCE, END_OF_FENCE = "function", "```json", "```"


class DeepSeekCalls:
    """A list of calls; one that does not parse makes the whole list text."""

    openings: tuple[str, ...] = (CALLS,)
    bare = ""
    closing = END_OF_CALLS
    newlines = 0
    leading_newlines = 0

    def __init__(self, *, fenced: bool) -> None:
        self._fenced = fenced
        """True if the grammar writes arguments in a fence; parsing accepts both forms."""

    def read(self, text: str, at: int, declared: DeclaredTools, *, final: bool) -> ParsedCalls:
        """Parse the list."""
        position = at + len(CALLS)
        if not final and text.find(END_OF_CALLS, position) < 0:
            raise IncompleteCall
        calls: list[ToolCall] = []
        while not calls or not text.startswith(END_OF_CALLS, position):
            call, end = read_single_call(text, expect(text, skip_space(text, position), CALL), declared)
            calls.append(call)
            position = skip_space(text, end)
            if position == len(text):
                raise IncompleteCall
        return ParsedCalls(position + len(END_OF_CALLS), tuple(calls))

    def grammar(self, grammar: Grammar, declared: DeclaredTools, *, parallel: bool) -> str:
        """Return a grammar of calls as the templates render them."""
        literal, delimiter = grammar.literal, grammar.delimiter
        bodies = []
        for name, parameters in declared.items():
            arguments = grammar.arguments(parameters)
            plain = f"{literal(name)} {delimiter(SEPARATOR)} {arguments}"
            head = f"{literal(KIND)} {delimiter(SEPARATOR)} {literal(f'{name}{chr(10)}{FENCE}{chr(10)}')}"
            bodies.append(f"{head} {arguments} {literal(f'{chr(10)}{END_OF_FENCE}')}" if self._fenced else plain)
        call = grammar.rule(f"{delimiter(CALL)} {alternatives(bodies)} {delimiter(END_OF_CALL)}")
        calls = grammar.repeated(call, literal("\n") if self._fenced else "", parallel=parallel)
        return f"{delimiter(CALLS)} {calls} {delimiter(END_OF_CALLS)}"


def read_single_call(text: str, at: int, declared: DeclaredTools) -> tuple[ToolCall, int]:
    """Parse one call; `at` is the position after its opening delimiter, the returned one is after its closing delimiter.

    Raises:
        MalformedCall: the text is not a call.
        IncompleteCall: the text ends within the call.
    """
    end_of_name = text.find("<", at)
    if end_of_name < 0:
        raise IncompleteCall
    name, position = text[at:end_of_name].strip(), expect(text, end_of_name, SEPARATOR)
    fenced = name == KIND and not text.startswith("{", skip_space(text, position))
    if fenced:
        line = text.find("\n", position)
        if line < 0:
            raise IncompleteCall
        name = text[position:line].strip()
        position = expect(text, skip_space(text, line), FENCE)
    check_declared(name, declared, position)
    arguments, position = read_arguments(text, skip_space(text, position))
    position = skip_space(text, position)
    if fenced:
        position = skip_space(text, expect(text, position, END_OF_FENCE))
    return ToolCall(name=name, arguments=arguments), expect(text, position, END_OF_CALL)
