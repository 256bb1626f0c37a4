"""Calls of a reward function, whatever it raises or returns."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any

from areal_actors.core.errors import ArealError, RewardError
from areal_actors.rewards import Reward, Score, check_score
from areal_actors.rewards.checks import task_name


def score_output(function: Reward, task_data: dict[str, Any], output: str) -> tuple[Score, str]:
    """Returns the score and a failure text (empty without a failure) of an output."""
    try:
        value = function(task_data, output)
        if inspect.isawaitable(value):
            value = asyncio.run(_await_value(value))
        return check_score(value), ""
    except ArealError as error:
        return Score(0.0), f"failed: {error}"
    # The user's function may raise anything: pytest's outcomes are no `Exception`
    except BaseException as error:  # noqa: BLE001
        return Score(0.0), f"raised {type(error).__name__}: {error}"


def check_value(reward: str, task_data: Mapping[str, Any], value: Score, failure: str) -> Score:
    """Returns the score.

    Raises:
        RewardError: there is a failure text; the message names the reward and the task.
    """
    if not failure:
        return value
    subject, task = f"reward {reward}", f"task {task_name(task_data)}"
    raise RewardError(f"{subject} {failure}" if task in failure else f"{subject} {failure} ({task})")


async def _await_value(value: Any) -> Any:
    return await value
