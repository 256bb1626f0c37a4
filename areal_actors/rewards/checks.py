"""Validation of rewards, and task names for error messages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from areal_actors.errors import RewardError


def check_reward(value: object) -> float:
    """Returns the value as a float if it is a finite real number: int, float, bool, or a scalar of numpy or torch.

    Raises:
        RewardError: it is anything else, such as None, a text, NaN or an infinity; the message names it.
    """
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        raise RewardError(f"a reward must be a real number, got {_described(value)}")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise RewardError(f"a reward must be a real number, got {_described(value)}") from error
    if not math.isfinite(number):
        raise RewardError(f"a reward must be finite, got {number}")
    return number


def task_name(task: Mapping[str, Any]) -> str:
    """Returns the name of a task in error messages: its id, or the beginning of its question."""
    return str(task.get("id") or f"{task.get('question', 'without id')!s:.60}")


def _described(value: object) -> str:
    return "None" if value is None else f"{type(value).__name__} {value!r:.60}"
