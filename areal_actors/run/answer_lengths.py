"""Lengths of a dataset's right answers in tokens, and whether a limit cuts them.

A cut answer is scored as if the model had given it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Literal

from areal_actors.core.values import Interaction, Task
from areal_actors.tokenization.tokenizer import ChatTokenizer

ROWS = 100
"""Most rows whose answers are measured."""


def describe_long_answers(tasks: Iterable[Task], tokenizer: ChatTokenizer, limit: int) -> str:
    """Returns how many of the first `ROWS` right answers exceed `sampling.max_tokens` = `limit`; empty if none does."""
    answers = [task.data.get("answer") for task in islice(tasks, ROWS)]
    lengths = [len(tokenizer.encode(answer)) for answer in answers if isinstance(answer, str) and answer]
    longer = sum(length > limit for length in lengths)
    if not longer:
        return ""
    verb = "is" if longer == 1 else "are"
    return (
        f"{longer} of {len(lengths)} right answers {verb} longer than sampling.max_tokens = {limit} (longest"
        f" {max(lengths)})"
    )


def describe_cut(
    length: int, calls: Iterable[Interaction], limit: int, unit: Literal["tokens", "bytes"] = "tokens"
) -> str:
    """Returns what cut a given answer; empty if every call took all of it.

    Args:
        length: its length in `unit`, without the end of the turn.
        calls: the model calls that it answered.
        limit: `sampling.max_tokens`.
        unit: `bytes` where the tokenizer of the model is not known, and each byte counts as a token.
    """
    shortest = min((len(call.completion) for call in calls if call.finish_reason == "length"), default=length)
    if shortest >= length:
        return ""
    if unit == "bytes":
        return (
            f"cut after {shortest} bytes by the call's own limit: the tokenizer of the model is not here, and a byte"
            " counts as a token"
        )
    cause = (
        f"sampling.max_tokens = {limit} cuts it"
        if shortest == limit
        else f"the call's own limit or the context cuts it at {shortest}"
    )
    return f"the answer takes {length} tokens, {cause}"
