"""REINFORCE++ (arXiv:2501.03262): no critic, no groups, advantages normalised over the whole batch.

The advantage of a token is R of its call less what the distance to the reference costs from this token on along its row, minus
the mean and divided by the standard deviation over the step. The paper takes these over all tokens, here each episode
weighs the same, however many tokens it has. The loss is PPO's clipped surrogate.

`baseline = "group"` is REINFORCE++-baseline: the group's mean is taken off first; its distance to the reference is a term of
the loss: `kl = { coefficient = 0.001, place = "loss", estimator = "k2" }`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from areal_actors.algorithms.base import Advantages, Algorithm, Batch, StepTokens, TokenLosses
from areal_actors.algorithms.correction import Correction
from areal_actors.algorithms.gae import discounted_sums
from areal_actors.algorithms.groups import group_centered
from areal_actors.algorithms.kl import RewardKl
from areal_actors.algorithms.pieces import AboveOne, Reduction, call_shares
from areal_actors.algorithms.shaping import Shaping, lonely, over_tokens
from areal_actors.algorithms.surrogate import clipped_policy
from areal_actors.config import PositiveFloat, PositiveInt

if TYPE_CHECKING:
    from torch import Tensor


class ReinforcePlusPlus(Algorithm, tag="reinforce_plus_plus"):
    """`[algorithm] name = "reinforce_plus_plus"`.

    Advantage: reward (above the group's mean with `baseline`) less the KL to come, normalised over the step's episodes
    Surrogate: clipped token ratio × behaviour weight
    AReaL: no `reward_norm`, `adv_norm` batch/batch; the baseline variant: `reward_norm` group/null
    """

    clip: PositiveFloat = 0.2
    """How far a token's ratio may move in one step, downwards, and upwards unless `clip_higher` says otherwise."""
    clip_higher: PositiveFloat | None = None
    """The bound upwards; `clip` if not set."""
    dual_clip: AboveOne | None = None
    """Bound of the loss of a token with negative advantage, in multiples of |A| (arXiv:1912.09729); not bounded if not set."""
    baseline: Literal["none", "group"] = "none"
    """`group` takes the group's mean off each reward first."""
    whiten: bool = True
    """Normalise advantages over all episodes of the step."""
    reduction: Reduction = "token"
    """Mean over the step's tokens, over tokens then episodes, or by a constant."""
    constant_length: PositiveInt = 512
    """Divisor under `reduction = "constant"`: the longest completion, say."""
    correction: Correction = Correction()
    kl: RewardKl = RewardKl()
    shaping: Shaping = Shaping()

    @property
    def recomputes_proximal(self) -> bool:
        """As the correction says."""
        return self.correction.recomputes_proximal

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Groups of one where they are the baseline, and those of the tables within."""
        yield from lonely(self.group_size) if self.baseline == "group" else ()
        yield from super().problems()

    def advantages(self, step: StepTokens) -> Advantages:
        """Rewards to come, normalised over the step."""
        rewards = self.shaping.of(step.rewards)
        if self.baseline == "group":
            rewards = group_centered(rewards, step.samples, step.groups)
        to_come = rewards[step.calls] - discounted_sums(self.kl.charges(step), step.rows, 1.0)
        return over_tokens(step, to_come, self.kl, self.shaping, whiten=self.whiten)

    def shares(self, tokens: Tensor, samples: Tensor) -> Tensor:
        """As `reduction` says."""
        return call_shares(self.reduction, tokens, samples, self.constant_length)

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """The clipped surrogate."""
        corrected = self.correction.of(batch, logp)
        said = clipped_policy(batch, logp, corrected, self.clip, self.clip_higher, dual_clip=self.dual_clip)
        return self.kl.added(said, batch, logp)
