"""Soft adaptive policy optimization (SAPO; arXiv:2511.20347, section 3, equations 5 and 6).

Instead of a hard clip a gate that closes softly as the ratio leaves 1, sooner for tokens with negative advantage:

    J = E[ mean over sequences, then tokens, of f(u) A ]    f(u) = 4/τ · sigmoid(τ (u - 1))    u = exp(logp - behaviour)

The gate is around the weights that sampled the token and so bounds staleness by itself: the `correction` table holds the veto only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_actors.algorithms.base import Advantages, Algorithm, Batch, StepTokens, TokenLosses
from areal_actors.algorithms.groups import group_normalized
from areal_actors.algorithms.kl import Kl
from areal_actors.algorithms.pieces import Reduction, call_shares, divergence, ratio
from areal_actors.algorithms.shaping import Shaping, lonely, spread
from areal_actors.algorithms.veto import Veto
from areal_actors.config import PositiveFloat, PositiveInt

if TYPE_CHECKING:
    from torch import Tensor


class Sapo(Algorithm, tag="sapo"):
    """`[algorithm] name = "sapo"`.

    Advantage: reward above the group's mean, over the group's standard deviation
    Surrogate: soft gate of the token ratio to the behaviour weights
    AReaL: `use_sapo_loss`, `sapo_tau_pos`, `sapo_tau_neg`; its mean over tokens: `reduction = "token"`
    """

    temperature_positive: PositiveFloat = 1.0
    """τ of tokens with positive advantage: the higher, the sooner the gate closes."""
    temperature_negative: PositiveFloat = 1.05
    """τ of the other tokens."""
    reduction: Reduction = "sequence"
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
        """The soft gate."""
        corrected = self.correction.plain(batch)
        ratios = ratio(logp, corrected.anchor)
        positive = batch.advantages > 0
        temperature = positive.to(logp.dtype) * (self.temperature_positive - self.temperature_negative) + self.temperature_negative
        gate = 4.0 / temperature * (temperature * (ratios - 1.0)).sigmoid()
        measures = {"gate_mean": gate.detach(), "approximate_kl": divergence(logp.detach(), batch.behaviour)}
        losses = corrected.weighted(-gate * batch.advantages)
        return self.kl.added(TokenLosses(losses=losses, measures=measures | corrected.measures), batch, logp)
