"""Lite PPO (arXiv:2508.08221): two tricks, no critic.

Rewards are centered on the mean of their group and divided by the standard deviation of the whole batch, so that groups
of nearly equal rewards are not amplified. The loss is the mean over tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from areal_actors.training.algorithms.groups import batch_normalized
from areal_actors.training.algorithms.policy_gradient import ClippedPolicy

if TYPE_CHECKING:
    from torch import Tensor


class LitePpo(ClippedPolicy, tag="lite_ppo"):
    """`[algorithm] name = "lite_ppo"`.

    Advantage: reward above the group's mean, over the standard deviation of the batch
    Surrogate: clipped token ratio × behaviour weight
    AReaL: `reward_norm` group/batch, whose deviation is around the groups' means: `std_around = "group"`
    """

    std_around: Literal["batch", "group"] = "batch"
    """Center of the standard deviation of the step's rewards: their mean, or the group means."""
    normalize_advantages: bool = False
    """Normalize advantages again, over all episodes of the step."""

    def compare(self, rewards: Tensor, samples: Tensor, groups: Tensor) -> Tensor:
        """Subtracts the group mean and divides by the standard deviation of the step."""
        return batch_normalized(rewards, samples, groups, around_group=self.std_around == "group")
