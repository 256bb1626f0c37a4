"""Rewards of an answer's form: its length, and the marks that a prompt asks for.

Both read the text alone and take no time; `weighted` adds them to a reward of the content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

from areal_actors.core.config import Config, PositiveInt

_THOUGHT = re.compile(r"\s*<think>.+?</think>\s*(?P<rest>\S.*)", re.DOTALL)
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_BOX = re.compile(r"\\boxed\s?\{\s*[^\s}]")
Form = Literal["answer-tag", "boxed", "think", "think-answer", "json"]


class Length(Config):
    """`length`: 1 up to `most` characters, then less, and 0 from twice as many (as arXiv:2503.14476, section 3.4)."""

    argument: ClassVar[str] = "most"

    most: PositiveInt = 1000
    """Characters of an answer that has the whole reward."""

    def __call__(self, task: Mapping[str, Any], output: str) -> float:  # noqa: ARG002 - the text decides
        """Returns 1.0, or less for a longer answer."""
        return min(max(2.0 - len(output) / self.most, 0.0), 1.0)


class AnswerForm(Config):
    """`format`: 1 if the answer has the form, else 0."""

    argument: ClassVar[str] = "form"

    form: Form = "answer-tag"
    """`answer-tag`: one `<answer>` with text in it; `boxed`: a `\\\\boxed{…}`; `think`: `<think>…</think>`, and text
    after it; `think-answer`: the same, and the text is one `<answer>`; `json`: nothing but JSON."""

    def __call__(self, task: Mapping[str, Any], output: str) -> float:  # noqa: ARG002 - the text decides
        """Returns 1.0 or 0.0."""
        return float(FORMS[self.form](output))


def _is_tagged(text: str) -> bool:
    contents = _TAG.findall(text)
    return len(contents) == 1 == text.count("<answer>") and bool(contents[0].strip())


def _is_thought(text: str) -> bool:
    return _THOUGHT.fullmatch(text) is not None and text.count("<think>") == 1


def _is_thought_and_tagged(text: str) -> bool:
    thought = _THOUGHT.fullmatch(text)
    rest = thought["rest"].strip() if thought else ""
    return _is_thought(text) and _is_tagged(rest) and rest.startswith("<answer>") and rest.endswith("</answer>")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


FORMS: Mapping[Form, Callable[[str], bool]] = {
    "answer-tag": _is_tagged,
    "boxed": lambda text: _BOX.search(text) is not None,
    "think": _is_thought,
    "think-answer": _is_thought_and_tagged,
    "json": _is_json,
}
