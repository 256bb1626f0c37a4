"""Several rewards as one: their sum, each times its weight. If one of them fails, so does the sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from areal_actors.rewards.checks import check_reward


class Weighted(msgspec.Struct, frozen=True):
    """`task.reward = "weighted"`: the options name each reward, with its weight and its own options."""

    parts: Sequence[tuple[float, Callable[[dict[str, Any], str], Any]]]

    def __call__(self, task: dict[str, Any], output: str) -> float:
        """The sum; rewards that are coroutine functions cannot be part of one.

        Raises:
            RewardError: a part returned what is not a finite number.
        """
        return sum(weight * check_reward(reward(task, output)) for weight, reward in self.parts)
