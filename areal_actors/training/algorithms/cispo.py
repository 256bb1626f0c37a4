"""Clipped importance-sampling weight policy optimization (CISPO; arXiv:2506.13585, equations 4 and 5).

The importance weight is clipped instead of the update, so that every token keeps its gradient:

    J = E[ mean over tokens of sg(clip(u, lowest, highest)) A logp ]    u = exp(logp - behaviour)

The weight itself corrects for staleness: the `correction` table has only the veto. The paper bounds it only from above and does not
state the bound; 5 is the value of ScaleRL (arXiv:2510.13786).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_actors.core.config import NonNegativeFloat, PositiveInt
from areal_actors.training.algorithms.base import Advantages, Algorithm, Batch, StepTokens, TokenLosses
from areal_actors.training.algorithms.groups import group_normalized
from areal_actors.training.algorithms.kl import Kl
from areal_actors.training.algorithms.pieces import LossAggregation, call_shares, divergence, ratio
from areal_actors.training.algorithms.shaping import Shaping, broadcast_to_tokens, check_group_size
from areal_actors.training.algorithms.veto import Veto

if TYPE_CHECKING:
    from torch import Tensor


class Cispo(Algorithm, tag="cispo"):
    """`[algorithm] name = "cispo"`.

    Advantage: reward above the group's mean, over the group's standard deviation
    Surrogate: log-probability × clipped token ratio to the behaviour weights, no gradient through it
    AReaL: none
    """

    highest: NonNegativeFloat = 5.0
    """Largest weight: 1 + ε_high of the paper; 0 means unbounded."""
    lowest: NonNegativeFloat = 0.0
    """Smallest weight: 1 - ε_low of the paper."""
    loss_aggregation: LossAggregation = "token_mean"
    """Mean over the step's tokens, over tokens then episodes, or sum divided by a constant."""
    constant_length: PositiveInt = 512
    """Divisor under `loss_aggregation = "constant"`, such as the longest completion."""
    correction: Veto = Veto()
    kl: Kl = Kl()
    shaping: Shaping = Shaping()

    @property
    def recomputes_proximal(self) -> bool:
        """False: ratios are to the behaviour weights."""
        return False

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yields also the problem of groups of one."""
        yield from (*check_group_size(self.group_size), *super().problems())

    def advantages(self, step: StepTokens) -> Advantages:
        """Normalizes rewards within their group."""
        rewards = self.kl.subtract_kl(step, self.shaping.apply(step.rewards))
        return broadcast_to_tokens(step, group_normalized(rewards, step.samples, step.groups), self.kl, self.shaping)

    def shares(self, tokens: Tensor, samples: Tensor) -> Tensor:
        """Returns the weights of `loss_aggregation`."""
        return call_shares(self.loss_aggregation, tokens, samples, self.constant_length)

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """Returns the REINFORCE loss with clipped weights."""
        corrected = self.correction.plain(batch)
        weight = ratio(logp.detach(), corrected.anchor)
        highest = self.highest or math.inf
        outside = (weight > highest) | (weight < self.lowest)
        weight = weight.clamp(self.lowest, highest)
        measures = {"clip_frac": outside, "weight_mean": weight, "approx_kl": divergence(logp.detach(), batch.behaviour)}
        losses = corrected.weighted(-weight * batch.advantages * logp)
        return self.kl.add_kl_loss(TokenLosses(losses=losses, measures=measures | corrected.measures), batch, logp)
