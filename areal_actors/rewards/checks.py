"""Validation of rewards, and task names for error messages."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any, Self

from areal_actors.core.errors import RecipeError, RewardError
from areal_actors.core.scalars import HIGHEST_REWARD


class Score(float):
    """A reward, with further numbers that the reward function reports by name."""

    metrics: Mapping[str, float]

    def __new__(cls, reward: float, metrics: Mapping[str, float] | None = None) -> Self:
        """Create the score."""
        score = super().__new__(cls, reward)
        score.metrics = metrics or {}
        return score


def check_score(value: object) -> Score:
    """Returns what a reward function returned, if it is valid.

    That is a real number, or a mapping of names to real numbers, of which `reward` is the reward.

    Raises:
        RewardError: it is anything else; the message names it.
    """
    if not isinstance(value, Mapping):
        return Score(check_reward(value))
    if "reward" not in value:
        raise RewardError(f"a mapping of metrics must have `reward`, got {', '.join(map(repr, value)) or 'nothing'}")
    return Score(
        check_reward(value["reward"]),
        {str(name): check_reward(metric) for name, metric in value.items() if name != "reward"},
    )


def check_reward(value: object) -> float:
    """Returns the value as a float if it is a finite real number: int, float, bool, or a scalar of numpy or torch.

    Raises:
        RewardError: it is anything else, such as None, a text, NaN or an infinity; the message names it.
    """
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        raise RewardError(f"a reward must be a real number, got {_describe_value(value)}")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise RewardError(f"a reward must be a real number, got {_describe_value(value)}") from error
    if not math.isfinite(number):
        raise RewardError(f"a reward must be finite, got {number}")
    if abs(number) > HIGHEST_REWARD:
        raise RewardError(f"a reward must be within ±{HIGHEST_REWARD:g}, got {number:g}; scale it")
    return number


def optional_package(module: str, reward: str, package: str) -> Any:
    """Returns the module of a package that a built-in reward needs.

    Raises:
        RecipeError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RecipeError(
            f"`task.reward`: `{reward}` needs the {package} package; pip install 'areal-actors[rewards]' "
            "(in a clone: .venv/bin/pip install -e '.[rewards]')"
        ) from error


def task_name(task: Mapping[str, Any]) -> str:
    """Returns the name of a task in error messages: its id, or the beginning of its question."""
    return str(task.get("id") or f"{task.get('question', 'without id')!s:.60}")


def _describe_value(value: object) -> str:
    return "None" if value is None else f"{type(value).__name__} {value!r:.60}"
