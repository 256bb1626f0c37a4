"""Dr. GRPO: GRPO done right (arXiv:2503.20783, section 3).

Two terms bias GRPO: dividing by the group's standard deviation weights tasks by difficulty, and the mean over the
tokens of a sequence penalizes long wrong answers too little. Both are removed: the advantage is the reward minus the
group's mean, and the token losses of a sequence are summed and divided by a constant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_actors.training.algorithms.groups import group_centered
from areal_actors.training.algorithms.pieces import LossAggregation
from areal_actors.training.algorithms.policy_gradient import ClippedPolicy

if TYPE_CHECKING:
    from torch import Tensor


class DrGrpo(ClippedPolicy, tag="dr_grpo"):
    """`[algorithm] name = "dr_grpo"`.

    Advantage: reward above the group's mean
    Surrogate: clipped token ratio × behaviour weight
    AReaL: `reward_norm` group/null (its recipe adds `adv_norm` batch/batch: `normalize_advantages = true`)
    """

    normalize_advantages: bool = False
    """Normalize advantages over all episodes of the step."""
    loss_aggregation: LossAggregation = "constant"

    @property
    def scales_by_std(self) -> bool:
        """False: differences are not scaled."""
        return False

    def compare(self, rewards: Tensor, samples: Tensor, groups: Tensor) -> Tensor:
        """Subtracts the group mean from rewards."""
        return group_centered(rewards, samples, groups)
