"""Formats that write a call's arguments as JSON.

They are Hermes, Llama 3, Mistral, DeepSeek, and bare JSON for any other model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from areal_actors.tokenization.tool_parsers.base import DeclaredTools, ToolCall, call_problem
from areal_actors.tokenization.tool_parsers.grammar import Grammar
from areal_actors.tokenization.tool_parsers.json_calls import (
    CallKeys,
    check_name,
    expect,
    read_arguments,
    read_call,
    read_calls,
    skip_space,
)
from areal_actors.tokenization.tool_parsers.syntax import CallSyntax, IncompleteCall, MalformedCall, ParsedCalls

FIRST_KEY = re.compile(r'\{[ \t\n\r]*"([^"]*)"')
PARTIAL_KEY = re.compile(r'\{[ \t\n\r]*(?:"[^"]{0,12})?\Z')
"""An object whose first key is incomplete; no key of a call is longer."""


def call_body(
    before: str = "", delimiter: str = "", head: str = "", after: str = ""
) -> Callable[[Grammar, str, Mapping[str, Any]], str]:
    """Return the grammar of a call: text, a delimiter, more text, its arguments, and text; empty ones are left out.

    `before` and `head` may refer to the tool as `{name}`, or in quotes as `{quoted}`.
    """

    def body(grammar: Grammar, name: str, parameters: Mapping[str, Any]) -> str:
        texts = [text.format(name=name, quoted=json.dumps(name)) for text in (before, head)]
        first, second, last = [grammar.literal(text) if text else "" for text in (*texts, after)]
        parts = (first, grammar.delimiter(delimiter) if delimiter else "", second, grammar.arguments(parameters), last)
        return " ".join(filter(None, parts))

    return body


def _starts_like_call(text: str, at: int, keys: CallKeys, otherwise: ParsedCalls) -> bool:
    """True if the first key of the object is a key of a call.

    If its text is incomplete, the result at the end is `otherwise`.
    """
    key = FIRST_KEY.match(text, at)
    if at == len(text) or (key is None and PARTIAL_KEY.match(text, at)):
        raise IncompleteCall(otherwise)
    return key is not None and key[1] in ("name", *keys.arguments, *keys.others)


HERMES_CALL = ("<tool_call>", "</tool_call>")
HERMES_KEYS = CallKeys()


def read_hermes(text: str, at: int, declared: DeclaredTools) -> ParsedCalls:
    """Parse one object between two delimiters; its strings may contain the closing one."""
    opening, closing = HERMES_CALL
    call, end = read_call(text, skip_space(text, at + len(opening)), declared, HERMES_KEYS)
    return ParsedCalls(expect(text, skip_space(text, end), closing), (call,))


PYTHON_TAG = "<|python_tag|>"
LLAMA3_KEYS = CallKeys(arguments=("parameters", "arguments"), others=("type",))


def read_llama3(text: str, at: int, declared: DeclaredTools) -> ParsedCalls:
    """Parse an object as the whole answer, or after the tag, and all that follow a semicolon."""
    tagged = text.startswith(PYTHON_TAG, at)
    as_text = ParsedCalls(at + 1)
    if not tagged and not _starts_like_call(text, at, LLAMA3_KEYS, as_text):
        return as_text
    call, end = read_call(text, skip_space(text, at + len(PYTHON_TAG)) if tagged else at, declared, LLAMA3_KEYS)
    calls: tuple[ToolCall, ...] = (call,)
    while True:
        following = skip_space(text, end)
        if following == len(text):
            raise IncompleteCall(ParsedCalls(end, calls))
        if text[following] != ";":
            return ParsedCalls(end, calls)
        following = skip_space(text, following + 1)
        begun = text.startswith("{", following)
        try:
            call, position = read_call(text, following, declared, LLAMA3_KEYS)
        except MalformedCall as error:
            return ParsedCalls(end, calls, call_problem(error) if begun else "")
        except IncompleteCall:
            raise IncompleteCall(ParsedCalls(end, calls, call_problem("it is incomplete") if begun else "")) from None
        calls, end = (*calls, call), position


FENCE, END_OF_FENCE = "```json", "```"
GENERIC_KEYS = CallKeys(arguments=("arguments", "parameters"), others=("id", "type"))


def read_generic_json(text: str, at: int, declared: DeclaredTools) -> ParsedCalls:
    """Parse one object or a list of them, as the whole answer or in a fence.

    JSON that is not a call is text, not an error.
    """
    fenced = text.startswith(FENCE, at)
    start = skip_space(text, at + len(FENCE)) if fenced else at
    first = skip_space(text, start + 1) if text.startswith("[", start) else start
    as_text = ParsedCalls(at + 1)
    if not _starts_like_call(text, first, GENERIC_KEYS, as_text):
        return as_text
    calls, end = read_calls(text, start, declared, GENERIC_KEYS)
    return ParsedCalls(expect(text, skip_space(text, end), END_OF_FENCE) if fenced else end, calls)


MISTRAL_CALLS, MISTRAL_ARGUMENTS = "[TOOL_CALLS]", "[ARGS]"
MISTRAL_KEYS = CallKeys(others=("id",))
MISTRAL_HEAD = re.compile(r"\s*([\w.\-]+)(?:\[CALL_ID\]\w+)?\[ARGS\]\s*")
PARTIAL_MISTRAL_HEAD = re.compile(r"\s*[\w.\-]*(?:\[[A-Z_]*(?:\]\w*(?:\[[A-Z]*\]?)?)?)?\s*\Z")
"""Matches every prefix of a head, and some other texts."""


def read_mistral(text: str, at: int, declared: DeclaredTools) -> ParsedCalls:
    """Parse a list of objects; or, since 2025, a name and arguments."""
    start = skip_space(text, at + len(MISTRAL_CALLS))
    if text.startswith("[", start):
        calls, end = read_calls(text, start, declared, MISTRAL_KEYS)
        return ParsedCalls(end, calls)
    head = MISTRAL_HEAD.match(text, start)
    if head is None:
        if PARTIAL_MISTRAL_HEAD.match(text, start):
            raise IncompleteCall
        raise MalformedCall(f"expected a list, or a name and {MISTRAL_ARGUMENTS}, after {MISTRAL_CALLS}", start)
    check_name(head[1], declared, head.end())
    arguments, end = read_arguments(text, head.end())
    return ParsedCalls(end, (ToolCall(name=head[1], arguments=arguments),))


DEEPSEEK_CALLS, DEEPSEEK_CALL = (
    ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
)
DEEPSEEK_SEPARATOR, DEEPSEEK_KIND = "<｜tool▁sep｜>", "function"


def read_deepseek(text: str, at: int, declared: DeclaredTools) -> ParsedCalls:
    """Parse the list of calls in either form; one that does not parse makes the whole list text."""
    opening, closing = DEEPSEEK_CALLS
    position = at + len(opening)
    calls: list[ToolCall] = []
    while not calls or not text.startswith(closing, position):
        call, end = _read_deepseek_call(text, expect(text, skip_space(text, position), DEEPSEEK_CALL[0]), declared)
        calls.append(call)
        position = skip_space(text, end)
        if position == len(text):
            raise IncompleteCall
    return ParsedCalls(position + len(closing), tuple(calls))


def _read_deepseek_call(text: str, at: int, declared: DeclaredTools) -> tuple[ToolCall, int]:
    """Parse one call.

    `at` is the position after its opening delimiter, the returned one is after its closing delimiter.
    """
    end_of_name = text.find("<", at)
    if end_of_name < 0:
        raise IncompleteCall
    name, position = text[at:end_of_name].strip(), expect(text, end_of_name, DEEPSEEK_SEPARATOR)
    fenced = name == DEEPSEEK_KIND and not text.startswith("{", skip_space(text, position))
    if fenced:
        line = text.find("\n", position)
        if line < 0:
            raise IncompleteCall
        name = text[position:line].strip()
        position = expect(text, skip_space(text, line), FENCE)
    check_name(name, declared, position)
    arguments, position = read_arguments(text, skip_space(text, position))
    position = skip_space(text, position)
    if fenced:
        position = skip_space(text, expect(text, position, END_OF_FENCE))
    return ToolCall(name=name, arguments=arguments), expect(text, position, DEEPSEEK_CALL[1])


HERMES = CallSyntax(
    read_hermes,
    openings=HERMES_CALL[:1],
    closing=HERMES_CALL[1],
    in_reasoning=True,
    newlines=1,
    body=call_body(head='\n{{"name": {quoted}, "arguments": ', after="}\n"),
    around_call=HERMES_CALL,
    separator="\n",
)
"""Hermes, Qwen2.5, Qwen3."""
LLAMA3 = CallSyntax(
    read_llama3,
    (PYTHON_TAG,),
    "{",
    special_tokens=True,
    body=call_body(head='{{"name": {quoted}, "parameters": ', after="}"),
    separator="; ",
)
"""Llama 3.1 to 3.3."""
GENERIC_JSON = CallSyntax(
    read_generic_json,
    (FENCE,),
    "{[",
    newlines=1,
    body=call_body(head='{{"name": {quoted}, "arguments": ', after="}"),
    brackets="parallel",
    separator=", ",
)
"""Templates that list tools without a call syntax."""
MISTRAL = CallSyntax(
    read_mistral,
    (MISTRAL_CALLS,),
    special_tokens=True,
    body=call_body("{name}", MISTRAL_ARGUMENTS),
    around_call=(MISTRAL_CALLS, ""),
)
"""A name and arguments, since 2025; the older list of objects is read, too."""
DEEPSEEK = CallSyntax(
    read_deepseek,
    openings=DEEPSEEK_CALLS[:1],
    closing=DEEPSEEK_CALLS[1],
    in_reasoning=True,
    special_tokens=True,
    body=call_body("{name}", DEEPSEEK_SEPARATOR),
    around_call=DEEPSEEK_CALL,
    around_calls=DEEPSEEK_CALLS,
)
"""V3.1: a name and arguments."""
DEEPSEEK_V3 = DEEPSEEK._replace(
    body=call_body(DEEPSEEK_KIND, DEEPSEEK_SEPARATOR, f"{{name}}\n{FENCE}\n", f"\n{END_OF_FENCE}"), separator="\n"
)
"""V3 and R1: arguments in a fence. Both forms are read."""
