"""Group relative policy optimization (GRPO; arXiv:2402.03300), with the decoupled PPO loss.

The advantage of every token of an answer is its reward, centered on the mean of its group and divided by the group's
standard deviation (section 4.1.2: (r - mean(r)) / std(r); here std with n - 1, + 1e-6: `groups.py`). The loss is PPO's
clipped surrogate (equation 3), corrected for staleness (`correction.py`).

Defaults that differ from the paper, as in common practice: the mean over all tokens of the step instead of over tokens
then sequences (`loss_aggregation = "seq_mean"`), and no KL to a reference model (`kl.coefficient = 0.04`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_actors.training.algorithms.groups import group_centered
from areal_actors.training.algorithms.policy_gradient import ClippedPolicy

if TYPE_CHECKING:
    from torch import Tensor


class Grpo(ClippedPolicy, tag="grpo"):
    """`[algorithm] name = "grpo"`.

    Advantage: reward above the group's mean, over the group's standard deviation
    Surrogate: clipped token ratio × behaviour weight
    AReaL: `reward_norm` group/group; with its `adv_norm` batch/batch: `normalize_advantages = true`
    """

    scale_by_std: bool = True
    """Divide advantages by the standard deviation of the group; Dr. GRPO (arXiv:2503.20783) does not."""
    normalize_advantages: bool = False
    """Normalize advantages again, over all episodes of the step."""

    @property
    def scales_by_std(self) -> bool:
        """True unless it is switched off."""
        return self.scale_by_std

    def compare(self, rewards: Tensor, samples: Tensor, groups: Tensor) -> Tensor:
        """Normalizes rewards within their group."""
        return (super().compare if self.scale_by_std else group_centered)(rewards, samples, groups)
