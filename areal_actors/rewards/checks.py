"""Validation of rewards, and task names for error messages."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Self

from areal_actors.core.errors import RecipeError, RewardError
from areal_actors.core.span_rewards import SpanReward
from areal_actors.rewards.spans import check_reward, read_call_rewards, read_spans


class Score(float):
    """A reward, with further numbers that the reward function reports by name, and rewards of parts of the episode."""

    metrics: Mapping[str, float]
    spans: tuple[SpanReward, ...]
    places: Mapping[str, float]
    """Rewards of calls by their places among the trained calls."""

    def __new__(
        cls,
        reward: float,
        metrics: Mapping[str, float] | None = None,
        spans: tuple[SpanReward, ...] = (),
        places: Mapping[str, float] | None = None,
    ) -> Self:
        """Create the score."""
        score = super().__new__(cls, reward)
        score.metrics, score.spans, score.places = metrics or {}, spans, places or {}
        return score

    def with_metrics(self, metrics: Mapping[str, float]) -> Score:
        """Returns the score with these metrics in place of its own."""
        return Score(float(self), metrics, self.spans, self.places)


def check_score(value: object) -> Score:
    """Returns what a reward function returned, if it is valid.

    That is a real number, or a mapping of names to real numbers, of which `reward` is the reward. A list `spans` and a
    mapping `calls` in it are rewards of parts of the episode (`rewards/spans.py`).

    Raises:
        RewardError: it is anything else; the message names it.
    """
    if not isinstance(value, Mapping):
        return Score(check_reward(value))
    if "reward" not in value:
        raise RewardError(f"a mapping of metrics must have `reward`, got {', '.join(map(repr, value)) or 'nothing'}")
    spans, calls = value.get("spans"), value.get("calls")
    parts = {"reward", *(["spans"] if isinstance(spans, list | tuple) else ())}
    parts |= {"calls"} if isinstance(calls, Mapping) else set()
    return Score(
        check_reward(value["reward"]),
        {str(name): check_reward(metric) for name, metric in value.items() if name not in parts},
        read_spans(spans) if "spans" in parts else (),
        read_call_rewards(calls) if isinstance(calls, Mapping) else {},
    )


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
