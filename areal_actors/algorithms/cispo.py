"""Clipped importance-sampling weight policy optimization (CISPO; arXiv:2506.13585, equations 4 and 5).

The weight is clipped, not the update, so that no token loses its gradient:

    J = E[ mean over tokens of sg(clip(u, lowest, highest)) A logp ]    u = exp(logp - behaviour)

The weight is itself the correction for staleness: the `correction` table holds the veto only. The paper bounds it from above only and does
not say where; 5 is that of ScaleRL (arXiv:2510.13786).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_actors.algorithms.base import Advantages, Algorithm, Batch, StepTokens, TokenLosses
from areal_actors.algorithms.groups import group_normalized
from areal_actors.algorithms.kl import Kl
from areal_actors.algorithms.pieces import Reduction, call_shares, divergence, ratio
from areal_actors.algorithms.shaping import Shaping, lonely, spread
from areal_actors.algorithms.veto import Veto
from areal_actors.config import NonNegativeFloat, PositiveInt

if TYPE_CHECKING:
    from torch import Tensor


class Cispo(Algorithm, tag="cispo"):
    """`[algorithm] name = "cispo"`.

    Advantage: reward above the group's mean, over the group's standard deviation
    Surrogate: log-probability × clipped token ratio to the behaviour weights, no gradient through it
    AReaL: none
    """

    highest: NonNegativeFloat = 5.0
    """Largest weight: 1 + ε_high of the paper; 0 sets no bound."""
    lowest: NonNegativeFloat = 0.0
    """Smallest weight: 1 - ε_low of the paper."""
    reduction: Reduction = "token"
    """Mean over the step's tokens, over tokens then episodes, or by a constant."""
    constant_length: PositiveInt = 512
    """Divisor under `reduction = "constant"`: the longest completion, say."""
    correction: Veto = Veto()
    kl: Kl = Kl()
    shaping: Shaping = Shaping()

    @property
    def recomputes_proximal(self) -> bool:
        """Ratios are to the behaviour weights."""
        return False

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Groups of one, too."""
        yield from (*lonely(self.group_size), *super().problems())

    def advantages(self, step: StepTokens) -> Advantages:
        """Rewards normalised within their group."""
        rewards = self.kl.charged(step, self.shaping.of(step.rewards))
        return spread(step, group_normalized(rewards, step.samples, step.groups), self.kl, self.shaping)

    def shares(self, tokens: Tensor, samples: Tensor) -> Tensor:
        """As `reduction` says."""
        return call_shares(self.reduction, tokens, samples, self.constant_length)

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """REINFORCE with clipped weights."""
        corrected = self.correction.plain(batch)
        weight = ratio(logp.detach(), corrected.anchor)
        highest = self.highest or math.inf
        outside = (weight > highest) | (weight < self.lowest)
        weight = weight.clamp(self.lowest, highest)
        measures = {"clip_share": outside, "weight_mean": weight, "approximate_kl": divergence(logp.detach(), batch.behaviour)}
        losses = corrected.weighted(-weight * batch.advantages * logp)
        return self.kl.added(TokenLosses(losses=losses, measures=measures | corrected.measures), batch, logp)
