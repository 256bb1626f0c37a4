"""Mistral: `[TOOL_CALLS]` and a list of objects; since 2025 `[TOOL_CALLS]name[ARGS]{…}`, repeated for each call."""

from __future__ import annotations

import re

from areal_actors.tokenization.tool_parsers.base import ToolCall
from areal_actors.tokenization.tool_parsers.grammar import Grammar, alternatives
from areal_actors.tokenization.tool_parsers.json_calls import CallKeys, check_declared, read_arguments, read_calls, skip_space
from areal_actors.tokenization.tool_parsers.syntax import (
    THINK,
    DeclaredTools,
    IncompleteCall,
    MalformedCall,
    ParsedCalls,
    ReasoningDelimiters,
)

CALLS, ARGUMENTS = "[TOOL_CALLS]", "[ARGS]"
KEYS = CallKeys(others=("id",))
HEAD = re.compile(r"\s*([\w.\-]+)(?:\[CALL_ID\]\w+)?\[ARGS\]\s*")
PARTIAL_HEAD = re.compile(r"\s*[\w.\-]*(?:\[[A-Z_]*(?:\]\w*(?:\[[A-Z]*\]?)?)?)?\s*\Z")
"""Matches every prefix of a head, and some other texts."""

REASONING = (ReasoningDelimiters("[THINK]", "[/THINK]"), *THINK)


class MistralCalls:
    """A list of calls, or one call."""

    openings: tuple[str, ...] = (CALLS,)
    bare = ""
    closing = ""
    newlines = 0
    leading_newlines = 0

    def read(self, text: str, at: int, declared: DeclaredTools, *, final: bool) -> ParsedCalls:  # noqa: ARG002 - the result does not depend on later text
        """Parse a list, or one call."""
        start = skip_space(text, at + len(CALLS))
        if text.startswith("[", start):
            calls, end = read_calls(text, start, declared, KEYS)
            return ParsedCalls(end, calls)
        head = HEAD.match(text, start)
        if head is None:
            if PARTIAL_HEAD.match(text, start):
                raise IncompleteCall
            raise MalformedCall(f"expected a list, or a name and {ARGUMENTS}, after {CALLS}", start)
        check_declared(head[1], declared, head.end())
        arguments, end = read_arguments(text, head.end())
        return ParsedCalls(end, (ToolCall(name=head[1], arguments=arguments),))

    def grammar(self, grammar: Grammar, declared: DeclaredTools, *, parallel: bool) -> str:
        """Return a grammar of the newer form."""
        bodies = [
            f"{grammar.literal(name)} {grammar.delimiter(ARGUMENTS)} {grammar.arguments(parameters)}"
            for name, parameters in declared.items()
        ]
        call = grammar.rule(f"{grammar.delimiter(CALLS)} {alternatives(bodies)}")
        return grammar.repeated(call, "", parallel=parallel)
