"""REINFORCE leave-one-out (RLOO; arXiv:2402.14740, section 2.3).

The baseline of an episode is the mean reward of the others of its group. The loss is REINFORCE over whole sequences:

    J = E[ 1/k Σ_i (R_i - mean of the others) log π(y_i) ]

The sum over a sequence's tokens is `loss_aggregation = "constant"` with length 1. Staleness weights multiply it; `clip`
replaces it by PPO's clipped surrogate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_actors.core.config import PositiveFloat, PositiveInt
from areal_actors.training.algorithms.base import Batch
from areal_actors.training.algorithms.correction import Correction
from areal_actors.training.algorithms.groups import leave_one_out
from areal_actors.training.algorithms.pieces import LossAggregation, clipped_surrogate, ratio
from areal_actors.training.algorithms.policy_gradient import PolicyGradient
from areal_actors.training.algorithms.veto import Corrected

if TYPE_CHECKING:
    from torch import Tensor


class Rloo(PolicyGradient, tag="rloo"):
    """`[algorithm] name = "rloo"`.

    Advantage: reward above the mean of the others of the group
    Surrogate: log-probability × behaviour weight; clipped ratio with `clip`
    AReaL: `reward_norm` group (leave one out)/null; with its loss: `clip = 0.4`, `loss_aggregation =
    "token_mean"`, `normalize_advantages = true`
    """

    clip: PositiveFloat | None = None
    """ε of PPO: the token ratio is clipped to [1 - clip, 1 + clip]; if not set, the loss has no ratio."""
    normalize_advantages: bool = False
    """Normalize advantages over all episodes of the step."""
    loss_aggregation: LossAggregation = "constant"
    constant_length: PositiveInt = 1
    """Divisor under `loss_aggregation = "constant"`; 1 is the sum."""
    correction: Correction = Correction()

    @property
    def scales_by_std(self) -> bool:
        """False: differences are not scaled."""
        return False

    def compare(self, rewards: Tensor, samples: Tensor, groups: Tensor) -> Tensor:
        """Subtracts the mean of the other episodes of the group from rewards."""
        return leave_one_out(rewards, samples, groups)

    def surrogate(self, batch: Batch, logp: Tensor, corrected: Corrected) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the REINFORCE loss, or the clipped surrogate."""
        if self.clip is None:
            return -batch.advantages * logp, {}
        return clipped_surrogate(ratio(logp, corrected.anchor), batch.advantages, self.clip)
