"""Delimiters around the parts of an answer.

Some models write their text, like their calls, in a channel or an element of its own. A family is a row of `FRAMES`.
Its delimiters are taken out of the text of answers; the chat template writes them again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from areal_actors.tokenization.tool_parsers.syntax import ReasoningDelimiters

NAME = "{name}"


class AnswerFrame(NamedTuple):
    """Delimiters of one family."""

    signature: tuple[str, ...]
    """Texts that all occur in its chat templates."""
    reasoning: ReasoningDelimiters
    parts: tuple[str, ...]
    """Delimiters that are no part of the text; `{name}` is the name of a tool."""
    before_calls: str
    """Text before the calls in an answer without text; with `{name}` it precedes each call."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts of special tokens that answers have to be decoded with."""
        return tuple(piece for part in self.parts for piece in part.split(NAME) if piece)

    def texts(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the delimiters in answers with tools of these names, longest first."""
        named = [part.replace(NAME, name) for part in self.parts for name in (names if NAME in part else ("",))]
        return tuple(sorted(dict.fromkeys(named), key=len, reverse=True))

    def remove(self, text: str, names: Iterable[str] = ()) -> str:
        """Return a text without the delimiters."""
        return re.sub("|".join(map(re.escape, self.texts(names))), "", text)


FRAMES = (
    AnswerFrame(  # Kimi K3
        ("<|open|>", "<|close|>", "<|sep|>"),
        ReasoningDelimiters("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        before_calls="<|open|>response<|sep|><|close|>response<|sep|>",
    ),
    AnswerFrame(  # Muse Glimmer
        ("<|start|>assistant to=self<|message|>", "<|eom|>"),
        ReasoningDelimiters("to=self<|message|>", "<|eom|><|start|>assistant"),
        ("<|eom|>", "<|start|>assistant", " to=user<|message|>", f" to={NAME}<|message|>"),
        before_calls=f" to={NAME}<|message|>",
    ),
)


def frame_of(source: str) -> AnswerFrame | None:
    """Return the frame of answers with this chat template; None for a family without a frame."""
    return next((frame for frame in FRAMES if all(text in source for text in frame.signature)), None)
