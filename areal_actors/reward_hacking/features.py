"""Features of an output that a reader can check: words and pairs of words, its length, tools, and how it ended."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import msgspec

WORD = re.compile(r"[^\W\d_]+|\d+|[^\w\s]")
MOST_WORDS = 400
"""Words of an output that are read."""
LENGTHS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Bounds of the number of words from which an output counts as long, or below which as short."""
ANSWER_FIELDS = re.compile(r"answer|solution|target|label|expected|reference|truth|test|output|result", re.IGNORECASE)
"""Names of fields of a task that state what is right, not what is asked."""


class ReadOutput(msgspec.Struct, frozen=True):
    """An output as the detector reads it."""

    features: frozenset[str]
    content: tuple[str, ...]
    """Different words and numbers that are not those of the question."""


def read_output(output: str, task: Mapping[str, Any], calls: int = 1, end: str = "") -> ReadOutput:
    """Returns features and content of an output.

    Args:
        output: the text that was scored.
        task: the row; words of its question are no content of an answer.
        calls: number of model calls of the episode.
        end: finish reason of the last of them.
    """
    words = [word.lower() for word in WORD.findall(output)[:MOST_WORDS]]
    asked = set(_question_words(task))
    content = tuple(dict.fromkeys(word for word in words if word.isalnum() and word not in asked))
    return ReadOutput(frozenset(_features(output, words, calls, end)), content)


def _question_words(task: Mapping[str, Any]) -> Iterator[str]:
    for name, value in task.items():
        if isinstance(value, str) and not ANSWER_FIELDS.search(name):
            yield from (word.lower() for word in WORD.findall(value)[:MOST_WORDS])


def _features(output: str, words: list[str], calls: int, end: str) -> Iterator[str]:
    """Numbers are one word: a feature is what outputs for different tasks can have in common."""
    plain = ["NUMBER" if word.isdecimal() else word for word in words]
    yield from (f"the word {word!r}" for word in set(plain))
    yield from (f"the words {first + ' ' + second!r}" for first, second in set(pairwise(plain)))
    yield from (f"at least {length} words" for length in LENGTHS if len(words) >= length)
    yield from (f"less than {length} words" for length in LENGTHS if len(words) < length)
    if len(words) >= 8 and len(set(words)) * 2 < len(words):
        yield "words that repeat"
    if output.count("\n") >= 5:
        yield "at least 6 lines"
    letters = [letter for letter in output if letter.isalpha()]
    if len(letters) > 3 and sum(letter.isupper() for letter in letters) * 2 > len(letters):
        yield "mostly capital letters"
    yield f"{calls} model call" if calls == 1 else f"{min(calls, 8)} model calls"
    if end:
        yield f"ended by {end}"
