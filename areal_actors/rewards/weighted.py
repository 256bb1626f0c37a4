"""Weighted sum of several rewards, each of which is also a metric. If one of them fails, so does the sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from areal_actors.rewards.checks import check_score


class Weighted(msgspec.Struct, frozen=True):
    """`task.reward = "weighted"`: the options have each reward with its weight and options."""

    parts: Sequence[tuple[str, float, Callable[[dict[str, Any], str], Any]]]
    """Name, weight and reward function of each."""

    def __call__(self, task: dict[str, Any], output: str) -> Mapping[str, float]:
        """Returns the sum as `reward`, each reward by its name, and their own metrics; coroutine functions are not supported.

        Raises:
            RewardError: a reward is not a finite number.
        """
        scores = [(name, weight, check_score(reward(task, output))) for name, weight, reward in self.parts]
        metrics = {name: found for *_, score in scores for name, found in score.metrics.items()}
        named = {name: float(score) for name, _, score in scores}
        return {**metrics, **named, "reward": sum(weight * score for _, weight, score in scores)}
