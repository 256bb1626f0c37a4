"""REINFORCE leave-one-out (RLOO; arXiv:2402.14740, section 2.3).

The baseline of an episode is the mean reward of the others of its group. The loss is REINFORCE over whole sequences:

    J = E[ 1/k Σ_i (R_i - mean of the others) log π(y_i) ]

The sum over a sequence's tokens is `loss_aggregation = "constant"` with length 1. Staleness weights multiply it; `clip` replaces it by
PPO's clipped surrogate.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_actors.core.config import PositiveFloat, PositiveInt
from areal_actors.training.algorithms.base import Advantages, Algorithm, Batch, StepTokens, TokenLosses
from areal_actors.training.algorithms.correction import Correction
from areal_actors.training.algorithms.groups import leave_one_out
from areal_actors.training.algorithms.kl import Kl
from areal_actors.training.algorithms.pieces import LossAggregation, call_shares, divergence
from areal_actors.training.algorithms.shaping import Shaping, broadcast_to_tokens, check_group_size
from areal_actors.training.algorithms.surrogate import clipped_policy

if TYPE_CHECKING:
    from torch import Tensor


class Rloo(Algorithm, tag="rloo"):
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
    """Sum over the tokens of an episode divided by a constant, then mean over episodes; or one of the other means."""
    constant_length: PositiveInt = 1
    """Divisor under `loss_aggregation = "constant"`; 1 is the sum."""
    correction: Correction = Correction()
    kl: Kl = Kl()
    shaping: Shaping = Shaping()

    @property
    def recomputes_proximal(self) -> bool:
        """True if the correction uses `Batch.proximal`."""
        return self.correction.recomputes_proximal

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yields also the problem of groups of one."""
        yield from (*check_group_size(self.group_size), *super().problems())

    def advantages(self, step: StepTokens) -> Advantages:
        """Subtracts the mean of the other episodes of the group from rewards."""
        rewards = self.kl.subtract_kl(step, self.shaping.apply(step.rewards))
        return broadcast_to_tokens(
            step, leave_one_out(rewards, step.samples, step.groups), self.kl, self.shaping, normalize_advantages=self.normalize_advantages
        )

    def shares(self, tokens: Tensor, samples: Tensor) -> Tensor:
        """Returns the weights of `loss_aggregation`."""
        return call_shares(self.loss_aggregation, tokens, samples, self.constant_length)

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """Returns the REINFORCE loss, or the clipped surrogate."""
        corrected = self.correction.correct(batch, logp)
        if self.clip is not None:
            return self.kl.add_kl_loss(clipped_policy(batch, logp, corrected, self.clip), batch, logp)
        losses = corrected.weighted(-batch.advantages * logp)
        measures = corrected.measures | {"approx_kl": divergence(logp.detach(), batch.behaviour)}
        return self.kl.add_kl_loss(TokenLosses(losses=losses, measures=measures), batch, logp)
