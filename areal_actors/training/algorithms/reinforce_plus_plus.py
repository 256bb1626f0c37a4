"""REINFORCE++ (arXiv:2501.03262): no critic, no groups, advantages normalised over the whole batch.

The advantage of a token is R of its call minus the KL penalties from this token to the end of its sequence, normalized
by the mean and the standard deviation of the step. The paper takes these over all tokens; here all episodes have the
same weight, however many tokens they have. The loss is PPO's clipped surrogate.

`baseline = "group"` is REINFORCE++-baseline: the group mean is subtracted first, and KL is a loss term:
`kl = { coefficient = 0.001, apply_to = "loss", estimator = "k2" }`.
"""

from __future__ import annotations

from typing import Literal

from areal_actors.training.algorithms.base import Advantages, StepTokens
from areal_actors.training.algorithms.gae import discounted_sums
from areal_actors.training.algorithms.groups import group_centered
from areal_actors.training.algorithms.kl import RewardKl
from areal_actors.training.algorithms.policy_gradient import ClippedPolicy


class ReinforcePlusPlus(ClippedPolicy, tag="reinforce_plus_plus"):
    """`[algorithm] name = "reinforce_plus_plus"`.

    Advantage: reward (above the group's mean with `baseline`) less the KL to come, normalised over the step's episodes
    Surrogate: clipped token ratio × behaviour weight
    AReaL: no `reward_norm`, `adv_norm` batch/batch; the baseline variant: `reward_norm` group/null
    """

    baseline: Literal["none", "group"] = "none"
    """`group` first subtracts the group mean from each reward."""
    normalize_advantages: bool = True
    """Normalize advantages over all episodes of the step."""
    kl: RewardKl = RewardKl()

    @property
    def compares_groups(self) -> bool:
        """True if the group is the baseline."""
        return self.baseline == "group"

    @property
    def scales_by_std(self) -> bool:
        """False: the deviation is that of all advantages."""
        return False

    def advantages(self, step: StepTokens) -> Advantages:
        """Returns rewards minus KL penalties to the end of the sequence, normalized over the step."""
        rewards = self.shaping.apply(step.rewards)
        if self.baseline == "group":
            rewards = group_centered(rewards, step.samples, step.groups)
        return self.finalize(
            step, rewards[step.calls] - discounted_sums(self.kl.kl_penalties(step), step.sequences, 1.0)
        )
