"""Clipped importance-sampling weight policy optimization (CISPO; arXiv:2506.13585, equations 4 and 5).

The importance weight is clipped instead of the update, so that every token keeps its gradient:

    J = E[ mean over tokens of sg(clip(u, lowest, highest)) A logp ]    u = exp(logp - behaviour)

The weight itself corrects for staleness: the `correction` table has only the veto. The paper bounds it only from above
and does not state the bound; 5 is the value of ScaleRL (arXiv:2510.13786).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from areal_actors.core.config import NonNegativeFloat
from areal_actors.training.algorithms.base import Batch
from areal_actors.training.algorithms.pieces import ratio
from areal_actors.training.algorithms.policy_gradient import PolicyGradient
from areal_actors.training.algorithms.veto import Corrected

if TYPE_CHECKING:
    from torch import Tensor


class Cispo(PolicyGradient, tag="cispo"):
    """`[algorithm] name = "cispo"`.

    Advantage: reward above the group's mean, over the group's standard deviation
    Surrogate: log-probability × clipped token ratio to the behaviour weights, no gradient through it
    AReaL: none
    """

    highest: NonNegativeFloat = 5.0
    """Largest weight: 1 + ε_high of the paper; 0 means unbounded."""
    lowest: NonNegativeFloat = 0.0
    """Smallest weight: 1 - ε_low of the paper."""

    def surrogate(self, batch: Batch, logp: Tensor, corrected: Corrected) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the REINFORCE loss with clipped weights."""
        weight = ratio(logp.detach(), corrected.anchor)
        highest = self.highest or math.inf
        outside = (weight > highest) | (weight < self.lowest)
        weight = weight.clamp(self.lowest, highest)
        return -weight * batch.advantages * logp, {"clip_frac": outside, "weight_mean": weight}
