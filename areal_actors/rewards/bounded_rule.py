"""Rules of bounded time, which the rollout worker applies itself.

Sending an output to a reward worker costs more than such a rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from areal_actors.rewards import Score, resolve_reward
from areal_actors.rewards.scored import check_value, score_output

BOUNDED_RULES = frozenset({"gsm8k"})
"""Rules of pure functions without unbounded backtracking."""
LONGEST_OUTPUT = 20_000
"""Characters that such a rule scores in less than 0.1 s, whatever they are."""


class BoundedRule:
    """A rule that is applied in the process of its caller."""

    def __init__(self, reward: str) -> None:
        """`reward` is one of `BOUNDED_RULES`."""
        self.reward = reward
        self._rule = resolve_reward(reward)

    def takes(self, output: str) -> bool:
        """Returns False for an output that is scored where it can be killed, by a reward worker."""
        return len(output) <= LONGEST_OUTPUT

    def score(self, task: Mapping[str, Any], output: str) -> Score:
        """Returns the value of the rule.

        Raises:
            RewardError: the rule failed; the text is that of a reward worker.
        """
        return check_value(self.reward, task, *score_output(self._rule, dict(task), output))


def bounded_rule(reward: str) -> BoundedRule | None:
    """Returns the rule of `task.reward`; None if only a reward worker scores with it."""
    return BoundedRule(reward) if reward in BOUNDED_RULES else None
