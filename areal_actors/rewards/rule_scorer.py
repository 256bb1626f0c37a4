"""Scores in the reward worker's process, for rules whose time is bounded: another process would cost more than the rule itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from areal_actors.rewards import Score, resolve_reward
from areal_actors.rewards.reward_pool import RewardPool, checked, scored

BOUNDED_RULES = frozenset({"gsm8k"})
"""Rules of pure functions without unbounded backtracking."""
LONGEST_OUTPUT = 20_000
"""Characters that such a rule scores in less than 0.1 s, whatever they are."""


class RuleScorer:
    """Scores with a bounded rule; outputs too long for it go to the pool, whose processes can be killed."""

    def __init__(self, pool: RewardPool) -> None:
        """The rule is that of the pool, which starts no process before the first long output."""
        self._pool = pool
        self._rule = resolve_reward(pool.reward)

    async def score(self, task: Mapping[str, Any], output: str) -> Score:
        """Returns the value of the rule; raises as `RewardPool.score`."""
        if len(output) > LONGEST_OUTPUT:
            return await self._pool.score(task, output)
        return checked(self._pool.reward, task, *scored(self._rule, dict(task), output))

    async def close(self) -> None:
        """Close the pool."""
        await self._pool.close()
