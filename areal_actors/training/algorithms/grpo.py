"""Group relative policy optimization (GRPO; arXiv:2402.03300), with the decoupled PPO loss.

Rewards are centered on the mean of their group and divided by its standard deviation (section 4.1.2). The loss is PPO's clipped
surrogate (equation 3), corrected for staleness (`correction.py`).

Defaults that differ from the paper, as in common practice: the mean over all tokens of the step instead of over tokens then
sequences (`loss_aggregation = "seq_mean"`), and no KL to a reference model (`kl.coefficient = 0.04`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_actors.core.config import PositiveFloat, PositiveInt
from areal_actors.training.algorithms.base import Advantages, Algorithm, Batch, StepTokens, TokenLosses
from areal_actors.training.algorithms.correction import Correction
from areal_actors.training.algorithms.groups import group_centered, group_normalized
from areal_actors.training.algorithms.kl import Kl
from areal_actors.training.algorithms.pieces import AboveOne, LossAggregation, call_shares
from areal_actors.training.algorithms.shaping import Shaping, broadcast_to_tokens, check_group_size
from areal_actors.training.algorithms.surrogate import clipped_policy

if TYPE_CHECKING:
    from torch import Tensor


class Grpo(Algorithm, tag="grpo"):
    """`[algorithm] name = "grpo"`.

    Advantage: reward above the group's mean, over the group's standard deviation
    Surrogate: clipped token ratio × behaviour weight
    AReaL: `reward_norm` group/group; with its `adv_norm` batch/batch: `normalize_advantages = true`
    """

    clip: PositiveFloat = 0.2
    """ε of PPO: the token ratio is clipped to [1 - clip, 1 + clip], or [1 - clip, 1 + clip_higher]."""
    clip_higher: PositiveFloat | None = None
    """Upper bound of the ratio, minus 1 (arXiv:2503.14476, equation 10); `clip` if not set."""
    dual_clip: AboveOne | None = None
    """Upper bound of the loss of a token with negative advantage, in multiples of |A| (arXiv:1912.09729); unbounded if not set."""
    scale_by_std: bool = True
    """Divide advantages by the standard deviation of the group; Dr. GRPO (arXiv:2503.20783) does not."""
    normalize_advantages: bool = False
    """Normalize advantages again, over all episodes of the step."""
    loss_aggregation: LossAggregation = "token_mean"
    """Mean over the step's tokens (DAPO), over tokens then episodes (GRPO paper), or sum divided by a constant (Dr. GRPO)."""
    constant_length: PositiveInt = 512
    """Divisor under `loss_aggregation = "constant"`, such as the longest completion."""
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
        """Normalizes rewards within their group."""
        rewards = self.kl.subtract_kl(step, self.shaping.apply(step.rewards))
        relative = (group_normalized if self.scale_by_std else group_centered)(rewards, step.samples, step.groups)
        return broadcast_to_tokens(step, relative, self.kl, self.shaping, normalize_advantages=self.normalize_advantages)

    def shares(self, tokens: Tensor, samples: Tensor) -> Tensor:
        """Returns the weights of `loss_aggregation`."""
        return call_shares(self.loss_aggregation, tokens, samples, self.constant_length)

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """Returns the clipped surrogate."""
        corrected = self.correction.correct(batch, logp)
        losses = clipped_policy(batch, logp, corrected, self.clip, self.clip_higher, dual_clip=self.dual_clip)
        return self.kl.add_kl_loss(losses, batch, logp)
