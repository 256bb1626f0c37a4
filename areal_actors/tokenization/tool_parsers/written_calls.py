"""Call syntax of templates that describe calls to the model, and do not render those of earlier answers: they are part of the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from areal_actors.tokenization.tool_parsers.call_pattern import CallPattern
from areal_actors.tokenization.tool_parsers.json_calls import CallKeys
from areal_actors.tokenization.tool_parsers.pythonic import LINE_DELIMITERS, PYTHON_LINES, PYTHONIC, write_lines, write_pythonic
from areal_actors.tokenization.tool_parsers.syntax import CallSyntax

PYTHONIC_TEMPLATES = ("<|tool_list_start|>", "<|tool_call_start|>", '"List of tools: ["')
"""Texts in the templates of LFM2 and LFM2.5; those of LFM2.5-Instruct have none of its delimiters."""
LIST_TAG, LIST_END = "<|tool_call|>", "<|/tool_call|>"


class WrittenCalls(NamedTuple):
    """Calls in the text of an answer."""

    syntax: CallSyntax
    write: Callable[[Sequence[tuple[str, str]]], str]


def written_calls(source: str) -> WrittenCalls | None:
    """Return the form of the calls that this template describes; None if it describes none that is known."""
    if any(text in source for text in PYTHONIC_TEMPLATES):
        return WrittenCalls(PYTHONIC, write_pythonic)
    if all(delimiter in source for delimiter in LINE_DELIMITERS):
        return WrittenCalls(PYTHON_LINES, write_lines)
    keys = CallKeys(others=("id",))
    if LIST_TAG in source:
        pattern = CallPattern((LIST_TAG, LIST_END if LIST_END in source else ""), ("", ""), listed=True, keys=keys)
    elif "<tool_call>" in source and "</tool_call>" in source:
        pattern = CallPattern(("", ""), ("<tool_call>\n", "\n</tool_call>"), separator="\n", keys=keys)
    else:
        return None
    return WrittenCalls(pattern.syntax(), pattern.write)
