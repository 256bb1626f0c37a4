"""Soft adaptive policy optimization (SAPO; arXiv:2511.20347, section 3, equations 5 and 6).

A soft gate instead of a hard clip: it closes as the ratio moves away from 1, faster for tokens with negative advantage:

    J = E[ mean over sequences, then tokens, of f(u) A ]    f(u) = 4/τ · sigmoid(τ (u - 1))    u = exp(logp - behaviour)

The ratio is to the weights that sampled the token, so the gate itself bounds staleness: the `correction` table has only
the veto.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_actors.core.config import PositiveFloat
from areal_actors.training.algorithms.base import Batch
from areal_actors.training.algorithms.pieces import LossAggregation, ratio
from areal_actors.training.algorithms.policy_gradient import PolicyGradient
from areal_actors.training.algorithms.veto import Corrected

if TYPE_CHECKING:
    from torch import Tensor


class Sapo(PolicyGradient, tag="sapo"):
    """`[algorithm] name = "sapo"`.

    Advantage: reward above the group's mean, over the group's standard deviation
    Surrogate: soft gate of the token ratio to the behaviour weights
    AReaL: `use_sapo_loss`, `sapo_tau_pos`, `sapo_tau_neg`; its mean over tokens: `loss_aggregation = "token_mean"`
    """

    temperature_positive: PositiveFloat = 1.0
    """τ of tokens with positive advantage: higher values close the gate sooner."""
    temperature_negative: PositiveFloat = 1.05
    """τ of the other tokens."""
    loss_aggregation: LossAggregation = "seq_mean"
    normalize_advantages: bool = False
    """Normalize advantages again, over all episodes of the step."""

    def surrogate(self, batch: Batch, logp: Tensor, corrected: Corrected) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the loss of the soft gate."""
        positive = batch.advantages > 0
        temperature = (
            positive.to(logp.dtype) * (self.temperature_positive - self.temperature_negative)
            + self.temperature_negative
        )
        gate = 4.0 / temperature * (temperature * (ratio(logp, corrected.anchor) - 1.0)).sigmoid()
        return -gate * batch.advantages, {"gate_mean": gate}
