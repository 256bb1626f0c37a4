"""Lite PPO (arXiv:2508.08221): two tricks, no critic.

Rewards are centered on the mean of their group and divided by the standard deviation of the whole batch, so that groups of nearly
equal rewards are not amplified. The loss is the mean over tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from areal_actors.core.config import PositiveFloat, PositiveInt
from areal_actors.training.algorithms.base import Advantages, Algorithm, Batch, StepTokens, TokenLosses
from areal_actors.training.algorithms.correction import Correction
from areal_actors.training.algorithms.groups import batch_normalized
from areal_actors.training.algorithms.kl import Kl
from areal_actors.training.algorithms.pieces import AboveOne, LossAggregation, call_shares
from areal_actors.training.algorithms.shaping import Shaping, broadcast_to_tokens, check_group_size
from areal_actors.training.algorithms.surrogate import clipped_policy

if TYPE_CHECKING:
    from torch import Tensor


class LitePpo(Algorithm, tag="lite_ppo"):
    """`[algorithm] name = "lite_ppo"`.

    Advantage: reward above the group's mean, over the standard deviation of the batch
    Surrogate: clipped token ratio × behaviour weight
    AReaL: `reward_norm` group/batch, whose deviation is around the groups' means: `std_around = "group"`
    """

    clip: PositiveFloat = 0.2
    """ε of PPO: the token ratio is clipped to [1 - clip, 1 + clip], or [1 - clip, 1 + clip_higher]."""
    clip_higher: PositiveFloat | None = None
    """Upper bound of the ratio, minus 1; `clip` if not set."""
    dual_clip: AboveOne | None = None
    """Upper bound of the loss of a token with negative advantage, in multiples of |A| (arXiv:1912.09729); unbounded if not set."""
    std_around: Literal["batch", "group"] = "batch"
    """Center of the standard deviation of the step's rewards: their mean, or the group means."""
    normalize_advantages: bool = False
    """Normalize advantages again, over all episodes of the step."""
    loss_aggregation: LossAggregation = "token_mean"
    """Mean over the step's tokens, over tokens then episodes, or sum divided by a constant."""
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
        """Subtracts the group mean and divides by the standard deviation of the step."""
        rewards = self.kl.subtract_kl(step, self.shaping.apply(step.rewards))
        relative = batch_normalized(rewards, step.samples, step.groups, around_group=self.std_around == "group")
        return broadcast_to_tokens(step, relative, self.kl, self.shaping, normalize_advantages=self.normalize_advantages)

    def shares(self, tokens: Tensor, samples: Tensor) -> Tensor:
        """Returns the weights of `loss_aggregation`."""
        return call_shares(self.loss_aggregation, tokens, samples, self.constant_length)

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """Returns the clipped surrogate."""
        corrected = self.correction.correct(batch, logp)
        losses = clipped_policy(batch, logp, corrected, self.clip, self.clip_higher, dual_clip=self.dual_clip)
        return self.kl.add_kl_loss(losses, batch, logp)
