"""The prompt of a task, as the built-in agent sends it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SINGLE_TURN = "areal_actors.rollout.single_turn:SingleTurn"
"""Name of the built-in agent."""


def prompt_of(task: Mapping[str, Any], system_prompt: str = "") -> list[dict[str, Any]]:
    """The messages of a task: its own `messages` if it has any, else its question.

    The system prompt comes first, unless they bring their own.
    """
    messages = list(task.get("messages") or [{"role": "user", "content": task["question"]}])
    has_own = messages[0].get("role") in {"system", "developer"}
    return messages if has_own or not system_prompt else [{"role": "system", "content": system_prompt}, *messages]
