"""Mistral: `[TOOL_CALLS]` and a list of objects; from 2025 on `[TOOL_CALLS]name[ARGS]{…}`, repeated for every call."""

from __future__ import annotations

import re

from areal_actors.answer_formats.base import ToolCall
from areal_actors.answer_formats.grammar import Grammar, alternatives
from areal_actors.answer_formats.json_calls import Keys, check_declared, read_arguments, read_calls, skip_space
from areal_actors.answer_formats.syntax import THINK, Block, Declared, Incomplete, Malformed, ReasoningMarks

CALLS, ARGUMENTS = "[TOOL_CALLS]", "[ARGS]"
KEYS = Keys(others=("id",))
HEAD = re.compile(r"\s*([\w.\-]+)(?:\[CALL_ID\]\w+)?\[ARGS\]\s*")
MAYBE_HEAD = re.compile(r"\s*[\w.\-]*(?:\[[A-Z_]*(?:\]\w*(?:\[[A-Z]*\]?)?)?)?\s*\Z")
"""All beginnings of a head, and some more."""

REASONING = (ReasoningMarks("[THINK]", "[/THINK]"), *THINK)


class MistralCalls:
    """A list, or one call at a time."""

    marks: tuple[str, ...] = (CALLS,)
    bare = ""
    closing = ""
    newlines = 0
    leading = 0

    def read(self, text: str, at: int, declared: Declared, *, final: bool) -> Block:  # noqa: ARG002 - nothing hangs on what follows
        """Read a list, or one call."""
        start = skip_space(text, at + len(CALLS))
        if text.startswith("[", start):
            calls, end = read_calls(text, start, declared, KEYS)
            return Block(end, calls)
        head = HEAD.match(text, start)
        if head is None:
            if MAYBE_HEAD.match(text, start):
                raise Incomplete
            raise Malformed(f"a list, or a name and {ARGUMENTS}, should follow {CALLS}", start)
        check_declared(head[1], declared, head.end())
        arguments, end = read_arguments(text, head.end())
        return Block(end, (ToolCall(name=head[1], arguments=arguments),))

    def grammar(self, grammar: Grammar, declared: Declared, *, parallel: bool) -> str:
        """The newer form."""
        bodies = [
            f"{grammar.literal(name)} {grammar.mark(ARGUMENTS)} {grammar.arguments(parameters)}" for name, parameters in declared.items()
        ]
        call = grammar.rule(f"{grammar.mark(CALLS)} {alternatives(bodies)}")
        return grammar.repeated(call, "", parallel=parallel)
