"""Lite PPO (arXiv:2508.08221): two tricks, no critic.

The baseline is the group's mean, the unit the standard deviation of the whole batch, so that a group of nearly equal rewards
is not blown up; and the loss is the mean over tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from areal_actors.algorithms.base import Advantages, Algorithm, Batch, StepTokens, TokenLosses
from areal_actors.algorithms.correction import Correction
from areal_actors.algorithms.groups import batch_normalized
from areal_actors.algorithms.kl import Kl
from areal_actors.algorithms.pieces import AboveOne, Reduction, call_shares
from areal_actors.algorithms.shaping import Shaping, lonely, spread
from areal_actors.algorithms.surrogate import clipped_policy
from areal_actors.config import PositiveFloat, PositiveInt

if TYPE_CHECKING:
    from torch import Tensor


class LitePpo(Algorithm, tag="lite_ppo"):
    """`[algorithm] name = "lite_ppo"`.

    Advantage: reward above the group's mean, over the standard deviation of the batch
    Surrogate: clipped token ratio × behaviour weight
    AReaL: `reward_norm` group/batch, whose deviation is around the groups' means: `std_around = "group"`
    """

    clip: PositiveFloat = 0.2
    """How far a token's ratio may move in one step, downwards, and upwards unless `clip_higher` says otherwise."""
    clip_higher: PositiveFloat | None = None
    """The bound upwards; `clip` if not set."""
    dual_clip: AboveOne | None = None
    """Bound of the loss of a token with negative advantage, in multiples of |A| (arXiv:1912.09729); not bounded if not set."""
    std_around: Literal["batch", "group"] = "batch"
    """The standard deviation of the step's rewards is taken around their mean, or around those of the groups."""
    whiten: bool = False
    """Normalise advantages once more, over all episodes of the step."""
    reduction: Reduction = "token"
    """Mean over the step's tokens, over tokens then episodes, or by a constant."""
    constant_length: PositiveInt = 512
    """Divisor under `reduction = "constant"`: the longest completion, say."""
    correction: Correction = Correction()
    kl: Kl = Kl()
    shaping: Shaping = Shaping()

    @property
    def recomputes_proximal(self) -> bool:
        """As the correction says."""
        return self.correction.recomputes_proximal

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Groups of one, too."""
        yield from (*lonely(self.group_size), *super().problems())

    def advantages(self, step: StepTokens) -> Advantages:
        """Distance from the group's mean, in units of the step's standard deviation."""
        rewards = self.kl.charged(step, self.shaping.of(step.rewards))
        relative = batch_normalized(rewards, step.samples, step.groups, around_group=self.std_around == "group")
        return spread(step, relative, self.kl, self.shaping, whiten=self.whiten)

    def shares(self, tokens: Tensor, samples: Tensor) -> Tensor:
        """As `reduction` says."""
        return call_shares(self.reduction, tokens, samples, self.constant_length)

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """The clipped surrogate."""
        corrected = self.correction.of(batch, logp)
        said = clipped_policy(batch, logp, corrected, self.clip, self.clip_higher, dual_clip=self.dual_clip)
        return self.kl.added(said, batch, logp)
