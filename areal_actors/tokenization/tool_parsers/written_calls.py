"""Call syntax of templates that describe calls to the model and do not render earlier ones faithfully.

The gateway then writes earlier calls into the text of their messages. A family is a row of `PYTHON_CALLS` or
`JSON_CALLS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from areal_actors.tokenization.tool_parsers.call_pattern import CallPattern
from areal_actors.tokenization.tool_parsers.json_calls import CallKeys
from areal_actors.tokenization.tool_parsers.python_forms import PYTHON_FENCE, PYTHON_LIST, write_fence, write_list
from areal_actors.tokenization.tool_parsers.pythonic import (
    LINE_DELIMITERS,
    PYTHON_LINES,
    PYTHONIC,
    write_lines,
    write_pythonic,
)
from areal_actors.tokenization.tool_parsers.syntax import CallSyntax

LIST_TAG, LIST_END = "<|tool_call|>", "<|/tool_call|>"
KEYS = CallKeys(others=("id",))


class WrittenCalls(NamedTuple):
    """Calls in the text of an answer."""

    syntax: CallSyntax
    write: Callable[[Sequence[tuple[str, str]]], str]


LFM2, OLMO = WrittenCalls(PYTHONIC, write_pythonic), WrittenCalls(PYTHON_LINES, write_lines)
PYTHON_CALLS: tuple[tuple[tuple[str, ...], WrittenCalls], ...] = (
    (("<|tool_call_start|>", "```python"), WrittenCalls(PYTHON_FENCE, write_fence)),  # MiniCPM3
    (("<|tool_list_start|>",), LFM2),
    (("<|tool_call_start|>",), LFM2),
    (('"List of tools: ["',), LFM2),  # LFM2.5-Instruct, whose template has none of its delimiters
    (("func_name1(params_name1=",), WrittenCalls(PYTHON_LIST, write_list)),  # Llama 3.2 and 4, Typhoon 2
    (LINE_DELIMITERS, OLMO),
)
"""Texts that all occur in the templates of a family, and its calls."""
JSON_CALLS: tuple[tuple[tuple[str, ...], CallPattern], ...] = (
    ((LIST_TAG, LIST_END), CallPattern((LIST_TAG, LIST_END), ("", ""), listed=True, keys=KEYS)),
    ((LIST_TAG,), CallPattern((LIST_TAG, ""), ("", ""), listed=True, keys=KEYS)),  # Granite 3.3
    # Falcon 3: its template renders calls as clients send them, with their type around the function
    ((r"<tool_call>\n[",), CallPattern(("<tool_call>\n", "\n</tool_call>"), ("", ""), listed=True, keys=KEYS)),
    # Apriel Nemotron: its template renders ids without their closing quote
    (("<tool_calls>[{",), CallPattern(("<tool_calls>", "</tool_calls>"), ("", ""), listed=True, keys=KEYS)),
    # Nemotron Mini, whose template has the tools and not the calls
    (("<extra_id_1>", "<tool> "), CallPattern(("", ""), ("<toolcall> ", " </toolcall>"), separator="\n", keys=KEYS)),
    (  # Command R+
        ("Action:", '"tool_name"', "```json"),
        CallPattern(
            ("Action:\n```json\n", "\n```"),
            ("", ""),
            listed=True,
            keys=CallKeys(name="tool_name", arguments=("parameters",)),
        ),
    ),
    (
        ("<tool_call>", "</tool_call>"),
        CallPattern(("", ""), ("<tool_call>\n", "\n</tool_call>"), separator="\n", keys=KEYS),
    ),
)
"""The same for calls that are JSON objects."""
OTHER_CALLS = ("<function=", "<arg_key>")
"""Parts of calls between `<tool_call>` that are no JSON objects."""


def written_calls(source: str) -> WrittenCalls | None:
    """Return the form of the calls that this template describes; None if it describes none that is known."""
    for signature, calls in PYTHON_CALLS:
        if all(text in source for text in signature):
            return calls
    for signature, pattern in JSON_CALLS:
        if all(text in source for text in signature) and not any(text in source for text in OTHER_CALLS):
            return WrittenCalls(pattern.syntax(), pattern.write)
    return None
