"""Values of a dataset's fields: found by a path in a row, and brought to the text or the messages that a task has."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

MISSING: Any = object()
ROLES = {
    "human": "user",
    "gpt": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "function": "tool",
}
"""Roles of ShareGPT and others, as chat messages have them."""
LONGEST_WHOLE = 1e15
"""Whole floats below this are written without a decimal point."""


def value_at(row: Mapping[Any, Any], path: str) -> Any:
    """The value at a path, as in `reward_model.ground_truth` or `answers.0`; `MISSING` if there is none.

    A column whose name is the whole path comes first; a negative number counts from the end of a list.
    """
    if path in row:
        return row[path]
    value: Any = row
    for part in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(part, MISSING)
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes) and part.removeprefix("-").isdecimal():
            place = int(part)
            value = value[place] if -len(value) <= place < len(value) else MISSING
        else:
            return MISSING
    return value


def as_text(value: Any) -> str | None:
    """A value as a text: a text itself, a number, a truth value, or a list of one of these.

    None for any other value.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and not math.isnan(value):
        return str(int(value)) if value.is_integer() and abs(value) < LONGEST_WHOLE else repr(value)
    if isinstance(value, list | tuple) and len(value) == 1:
        return as_text(value[0])
    return None


def as_messages(value: Any) -> list[dict[str, Any]] | None:
    """A value as chat messages with `role` and `content`, from OpenAI's or ShareGPT's fields; None if it is none."""
    if isinstance(value, str) and value.lstrip().startswith("[{"):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if not isinstance(value, list | tuple) or not value or not all(isinstance(message, Mapping) for message in value):
        return None
    messages: list[dict[str, Any]] = []
    for message in value:
        role = message.get("role", message.get("from"))
        content = message.get("content", message.get("value"))
        if not isinstance(role, str) or not (isinstance(content, str | list) or message.get("tool_calls")):
            return None
        rest = {
            name: entry
            for name, entry in message.items()
            if name not in {"role", "from", "content", "value"} and entry is not None
        }
        messages.append({"role": ROLES.get(role.lower(), role.lower()), "content": content, **rest})
    return messages


def split_answer(messages: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], str | None]:
    """The messages up to the last of a user, and the text of the answer that follows it; None without an answer."""
    last = max((place for place, message in enumerate(messages) if message["role"] != "assistant"), default=-1)
    after = [message["content"] for message in messages[last + 1 :] if isinstance(message["content"], str)]
    return list(messages[: last + 1]), after[0] if after else None


def text_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """The text of the last message that a user wrote; empty without any."""
    for message in reversed(messages):
        if message["role"] == "user":
            content = message["content"]
            if isinstance(content, str):
                return content
            return "\n".join(part.get("text", "") for part in content if isinstance(part, Mapping))
    return ""
