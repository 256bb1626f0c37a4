"""Prompts of a judge: files with places, and the questions that are made of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from areal_actors.core.errors import RecipeError, RewardError
from areal_actors.rewards.checks import task_name

PROMPTS = Path(__file__).with_name("prompts")
NEEDED: Mapping[str, tuple[str, ...]] = {
    "rubric": ("answer",),
    "pairwise": ("first", "second"),
    "listwise": ("answers",),
}
"""Places without which a prompt asks nothing about the answers, by method."""
_PLACE = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class PromptTemplate(msgspec.Struct, frozen=True):
    """A prompt with places: `{{question}}`, and any other field of the task's row by its name."""

    text: str
    source: str

    @classmethod
    def load(cls, path: str, method: str) -> Self:
        """Returns the prompt of a file, or the shipped one of the method if `path` is empty.

        Raises:
            RecipeError: there is no such file, or a place that the method needs is missing.
        """
        file = Path(path).expanduser() if path else PROMPTS / f"{method}.txt"
        try:
            text = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeError) as error:
            raise RecipeError(f"`prompt`: {path} cannot be read ({error}); name a text file") from error
        places = set(_PLACE.findall(text))
        if missing := [place for place in NEEDED[method] if place not in places]:
            named = " and ".join(f"{{{{{place}}}}}" for place in missing)
            raise RecipeError(f"`prompt`: {path} has no {named}; method {method} puts the answers there")
        return cls(text, str(file))

    def render(self, task: Mapping[str, Any], places: Mapping[str, str]) -> str:
        """Returns the prompt about a task; text that is filled in is not searched for places.

        Raises:
            RewardError: a place is neither one of these nor a field of the task.
        """
        known = {"question": question_of(task), "reference": str(task.get("answer", "")), **places}

        def fill(match: re.Match[str]) -> str:
            name = match[1]
            if name not in known and name not in task:
                raise RewardError(
                    f"the prompt {self.source} has the place {{{{{name}}}}}, which task {task_name(task)} has no field"
                    f" for; known: {', '.join(sorted({*known, *task}))}"
                )
            return known[name] if name in known else str(task[name])

        return _PLACE.sub(fill, self.text)


def question_of(task: Mapping[str, Any]) -> str:
    """Returns the task as text: its `question`, or its `messages`, one after the other."""
    if isinstance(question := task.get("question"), str):
        return question
    messages = task.get("messages") or ()
    return "\n\n".join(f"{message.get('role')}: {_text_of(message.get('content'))}" for message in messages)


def describe_criteria(descriptions: Mapping[str, str]) -> str:
    """Returns the criteria of a rubric as a list."""
    return "\n".join(f"- {name}: {text}" if text else f"- {name}" for name, text in descriptions.items())


def list_answers(outputs: Sequence[str]) -> str:
    """Returns answers under numbered headings, from 1."""
    return "\n\n".join(f"# Answer {number}\n{output}" for number, output in enumerate(outputs, start=1))


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    return "\n".join(str(part.get("text", f"[{part.get('type')}]")) for part in parts if isinstance(part, Mapping))
