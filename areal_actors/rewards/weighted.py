"""Weighted sum of several rewards. If one of them fails, so does the sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from areal_actors.rewards.checks import check_reward


class Weighted(msgspec.Struct, frozen=True):
    """`task.reward = "weighted"`: the options have each reward with its weight and options."""

    parts: Sequence[tuple[float, Callable[[dict[str, Any], str], Any]]]

    def __call__(self, task: dict[str, Any], output: str) -> float:
        """Returns the sum; coroutine functions are not supported.

        Raises:
            RewardError: a reward is not a finite number.
        """
        return sum(weight * check_reward(reward(task, output)) for weight, reward in self.parts)
