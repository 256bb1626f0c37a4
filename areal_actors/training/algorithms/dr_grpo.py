"""Dr. GRPO: GRPO done right (arXiv:2503.20783, section 3).

Two terms bias GRPO: dividing by the group's standard deviation weights tasks by difficulty, and the mean over the tokens of a
sequence penalizes long wrong answers too little. Both are removed: the advantage is the reward minus the group's mean, and the
token losses of a sequence are summed and divided by a constant.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_actors.core.config import PositiveFloat, PositiveInt
from areal_actors.training.algorithms.base import Advantages, Algorithm, Batch, StepTokens, TokenLosses
from areal_actors.training.algorithms.correction import Correction
from areal_actors.training.algorithms.groups import group_centered
from areal_actors.training.algorithms.kl import Kl
from areal_actors.training.algorithms.pieces import AboveOne, LossAggregation, call_shares
from areal_actors.training.algorithms.shaping import Shaping, broadcast_to_tokens, check_group_size
from areal_actors.training.algorithms.surrogate import clipped_policy

if TYPE_CHECKING:
    from torch import Tensor


class DrGrpo(Algorithm, tag="dr_grpo"):
    """`[algorithm] name = "dr_grpo"`.

    Advantage: reward above the group's mean
    Surrogate: clipped token ratio × behaviour weight
    AReaL: `reward_norm` group/null (its recipe adds `adv_norm` batch/batch: `normalize_advantages = true`)
    """

    clip: PositiveFloat = 0.2
    """ε of PPO: the token ratio is clipped to [1 - clip, 1 + clip], or [1 - clip, 1 + clip_higher]."""
    clip_higher: PositiveFloat | None = None
    """Upper bound of the ratio, minus 1; `clip` if not set."""
    dual_clip: AboveOne | None = None
    """Upper bound of the loss of a token with negative advantage, in multiples of |A| (arXiv:1912.09729); unbounded if not set."""
    normalize_advantages: bool = False
    """Normalize advantages over all episodes of the step."""
    loss_aggregation: LossAggregation = "constant"
    """Sum over the tokens of an episode divided by a constant, then mean over episodes; or one of the other means."""
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
        """Subtracts the group mean from rewards."""
        rewards = self.kl.subtract_kl(step, self.shaping.apply(step.rewards))
        return broadcast_to_tokens(
            step, group_centered(rewards, step.samples, step.groups), self.kl, self.shaping, normalize_advantages=self.normalize_advantages
        )

    def shares(self, tokens: Tensor, samples: Tensor) -> Tensor:
        """Returns the weights of `loss_aggregation`."""
        return call_shares(self.loss_aggregation, tokens, samples, self.constant_length)

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """Returns the clipped surrogate."""
        corrected = self.correction.correct(batch, logp)
        losses = clipped_policy(batch, logp, corrected, self.clip, self.clip_higher, dual_clip=self.dual_clip)
        return self.kl.add_kl_loss(losses, batch, logp)
