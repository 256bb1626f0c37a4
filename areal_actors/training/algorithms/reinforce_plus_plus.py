"""REINFORCE++ (arXiv:2501.03262): no critic, no groups, advantages normalised over the whole batch.

The advantage of a token is R of its call minus the KL penalties from this token to the end of its row, normalized by the mean and
the standard deviation of the step. The paper takes these over all tokens; here all episodes have the same weight, however many
tokens they have. The loss is PPO's clipped surrogate.

`baseline = "group"` is REINFORCE++-baseline: the group mean is subtracted first, and KL is a loss term:
`kl = { coefficient = 0.001, apply_to = "loss", estimator = "k2" }`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from areal_actors.core.config import PositiveFloat, PositiveInt
from areal_actors.training.algorithms.base import Advantages, Algorithm, Batch, StepTokens, TokenLosses
from areal_actors.training.algorithms.correction import Correction
from areal_actors.training.algorithms.gae import discounted_sums
from areal_actors.training.algorithms.groups import group_centered
from areal_actors.training.algorithms.kl import RewardKl
from areal_actors.training.algorithms.pieces import AboveOne, LossAggregation, call_shares
from areal_actors.training.algorithms.shaping import Shaping, check_group_size, finalize_advantages
from areal_actors.training.algorithms.surrogate import clipped_policy

if TYPE_CHECKING:
    from torch import Tensor


class ReinforcePlusPlus(Algorithm, tag="reinforce_plus_plus"):
    """`[algorithm] name = "reinforce_plus_plus"`.

    Advantage: reward (above the group's mean with `baseline`) less the KL to come, normalised over the step's episodes
    Surrogate: clipped token ratio × behaviour weight
    AReaL: no `reward_norm`, `adv_norm` batch/batch; the baseline variant: `reward_norm` group/null
    """

    clip: PositiveFloat = 0.2
    """ε of PPO: the token ratio is clipped to [1 - clip, 1 + clip], or [1 - clip, 1 + clip_higher]."""
    clip_higher: PositiveFloat | None = None
    """Upper bound of the ratio, minus 1; `clip` if not set."""
    dual_clip: AboveOne | None = None
    """Upper bound of the loss of a token with negative advantage, in multiples of |A| (arXiv:1912.09729); unbounded if not set."""
    baseline: Literal["none", "group"] = "none"
    """`group` first subtracts the group mean from each reward."""
    normalize_advantages: bool = True
    """Normalize advantages over all episodes of the step."""
    loss_aggregation: LossAggregation = "token_mean"
    """Mean over the step's tokens, over tokens then episodes, or sum divided by a constant."""
    constant_length: PositiveInt = 512
    """Divisor under `loss_aggregation = "constant"`, such as the longest completion."""
    correction: Correction = Correction()
    kl: RewardKl = RewardKl()
    shaping: Shaping = Shaping()

    @property
    def recomputes_proximal(self) -> bool:
        """True if the correction uses `Batch.proximal`."""
        return self.correction.recomputes_proximal

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yields groups of one if they are the baseline, and the problems of nested tables."""
        yield from check_group_size(self.group_size) if self.baseline == "group" else ()
        yield from super().problems()

    def advantages(self, step: StepTokens) -> Advantages:
        """Returns rewards minus KL penalties to the end of the row, normalized over the step."""
        rewards = self.shaping.apply(step.rewards)
        if self.baseline == "group":
            rewards = group_centered(rewards, step.samples, step.groups)
        penalized = rewards[step.calls] - discounted_sums(self.kl.kl_penalties(step), step.rows, 1.0)
        return finalize_advantages(step, penalized, self.kl, self.shaping, normalize_advantages=self.normalize_advantages)

    def shares(self, tokens: Tensor, samples: Tensor) -> Tensor:
        """Returns the weights of `loss_aggregation`."""
        return call_shares(self.loss_aggregation, tokens, samples, self.constant_length)

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """Returns the clipped surrogate."""
        corrected = self.correction.correct(batch, logp)
        losses = clipped_policy(batch, logp, corrected, self.clip, self.clip_higher, dual_clip=self.dual_clip)
        return self.kl.add_kl_loss(losses, batch, logp)
