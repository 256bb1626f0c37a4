"""Marks in text: the text of a special token in a message, a tool result or an answer is text, and no control token.

Chat templates insert messages as they are, and tokenizers read `<|im_end|>` as the token that ends a turn wherever it
stands: an author of any text that the model sees could end its turn, or speak as the system. So a mark in a message is
broken by a joint, a pair of characters that no text has, while the template renders it; the tokenizer takes the joint
out again and reads the mark as plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

JOINT = "\ufdd0\ufdd1"
"""Noncharacters of Unicode, which are for internal use."""
ESCAPED_JOINT = "\\ufdd0\\ufdd1"
"""The same in JSON in ASCII, as some templates write it."""
SHORTEST = 3
"""Length from which the text of a special token is a mark: shorter ones are letters of toy tokenizers."""
PREFIX = 2
LEFT_ALONE = frozenset({"role", "type", "url"})
"""Entries of messages that are no text of anybody."""


class LiteralMarks:
    """The marks of one tokenizer."""

    def __init__(self, special: Iterable[str], answer_marks: Iterable[str] = ()) -> None:
        """Set the texts of special tokens, and those that answers legitimately have, for messages of the model."""
        texts = sorted({text for text in special if len(text) >= SHORTEST}, key=len, reverse=True)
        answers = set(answer_marks)
        self._prefixes = tuple({text[:PREFIX] for text in texts})
        self._pattern = _pattern_of(texts)
        self._answer_pattern = _pattern_of([text for text in texts if not any(text in mark for mark in answers)])

    def break_in(self, value: Any, *, of_model: bool = False) -> Any:
        """Return a text, or JSON with texts, with all marks broken; the same object if it has none."""
        if isinstance(value, str):
            for prefix in self._prefixes:
                if prefix in value:
                    return (self._answer_pattern if of_model else self._pattern).sub(_break_mark, value)
            return value
        if isinstance(value, Mapping):
            broken = {
                self.break_in(name, of_model=of_model): (
                    inner if name in LEFT_ALONE else self.break_in(inner, of_model=of_model)
                )
                for name, inner in value.items()
            }
            return (
                broken
                if any(left is not right for left, right in zip(broken.values(), value.values(), strict=True))
                else value
            )
        if isinstance(value, list | tuple):
            parts = [self.break_in(inner, of_model=of_model) for inner in value]
            return parts if any(left is not right for left, right in zip(parts, value, strict=True)) else value
        return value

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Return messages with all marks broken, those of the model without those that its answers have."""
        return [self.break_in(message, of_model=message.get("role") == "assistant") for message in messages]

    def count(self, text: str) -> int:
        """Return the number of whole marks in a text."""
        return len(self._pattern.findall(text)) if any(prefix in text for prefix in self._prefixes) else 0


def join_marks(text: str) -> str:
    """Return a text with its marks whole again."""
    return text.replace(JOINT, "") if JOINT in text else text


def _pattern_of(texts: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)) or "(?!)")


def _break_mark(mark: re.Match[str]) -> str:
    return f"{mark[0][0]}{JOINT}{mark[0][1:]}"
