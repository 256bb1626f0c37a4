"""Soft adaptive policy optimization (SAPO; arXiv:2511.20347, section 3, equations 5 and 6).

A soft gate instead of a hard clip: it closes as the ratio moves away from 1, faster for tokens with negative advantage:

    J = E[ mean over sequences, then tokens, of f(u) A ]    f(u) = 4/τ · sigmoid(τ (u - 1))    u = exp(logp - behaviour)

The ratio is to the weights that sampled the token, so the gate itself bounds staleness: the `correction` table has only the veto.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_actors.core.config import PositiveFloat, PositiveInt
from areal_actors.training.algorithms.base import Advantages, Algorithm, Batch, StepTokens, TokenLosses
from areal_actors.training.algorithms.groups import group_normalized
from areal_actors.training.algorithms.kl import Kl
from areal_actors.training.algorithms.pieces import LossAggregation, call_shares, divergence, ratio
from areal_actors.training.algorithms.shaping import Shaping, broadcast_to_tokens, check_group_size
from areal_actors.training.algorithms.veto import Veto

if TYPE_CHECKING:
    from torch import Tensor


class Sapo(Algorithm, tag="sapo"):
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
        """Returns the loss of the soft gate."""
        corrected = self.correction.plain(batch)
        ratios = ratio(logp, corrected.anchor)
        positive = batch.advantages > 0
        temperature = positive.to(logp.dtype) * (self.temperature_positive - self.temperature_negative) + self.temperature_negative
        gate = 4.0 / temperature * (temperature * (ratios - 1.0)).sigmoid()
        measures = {"gate_mean": gate.detach(), "approx_kl": divergence(logp.detach(), batch.behaviour)}
        losses = corrected.weighted(-gate * batch.advantages)
        return self.kl.add_kl_loss(TokenLosses(losses=losses, measures=measures | corrected.measures), batch, logp)
