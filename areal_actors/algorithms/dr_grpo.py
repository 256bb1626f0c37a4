"""Dr. GRPO: GRPO done right (arXiv:2503.20783, section 3).

Two terms of GRPO bias it: dividing by the group's standard deviation weighs tasks by how hard they are, and the mean over
the tokens of a sequence lets long wrong answers off lightly. Both go: the advantage is the distance from the group's mean,
and the tokens of a sequence are summed and divided by one constant.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_actors.algorithms.base import Advantages, Algorithm, Batch, StepTokens, TokenLosses
from areal_actors.algorithms.correction import Correction
from areal_actors.algorithms.groups import group_centered
from areal_actors.algorithms.kl import Kl
from areal_actors.algorithms.pieces import AboveOne, Reduction, call_shares
from areal_actors.algorithms.shaping import Shaping, lonely, spread
from areal_actors.algorithms.surrogate import clipped_policy
from areal_actors.config import PositiveFloat, PositiveInt

if TYPE_CHECKING:
    from torch import Tensor


class DrGrpo(Algorithm, tag="dr_grpo"):
    """`[algorithm] name = "dr_grpo"`.

    Advantage: reward above the group's mean
    Surrogate: clipped token ratio × behaviour weight
    AReaL: `reward_norm` group/null (its recipe adds `adv_norm` batch/batch: `whiten = true`)
    """

    clip: PositiveFloat = 0.2
    """How far a token's ratio may move in one step, downwards, and upwards unless `clip_higher` says otherwise."""
    clip_higher: PositiveFloat | None = None
    """The bound upwards; `clip` if not set."""
    dual_clip: AboveOne | None = None
    """Bound of the loss of a token with negative advantage, in multiples of |A| (arXiv:1912.09729); not bounded if not set."""
    whiten: bool = False
    """Normalise advantages over all episodes of the step."""
    reduction: Reduction = "constant"
    """Sum over an episode's tokens by a constant, then mean over episodes; or the means of the others."""
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
        """Distance from the group's mean."""
        rewards = self.kl.charged(step, self.shaping.of(step.rewards))
        return spread(step, group_centered(rewards, step.samples, step.groups), self.kl, self.shaping, whiten=self.whiten)

    def shares(self, tokens: Tensor, samples: Tensor) -> Tensor:
        """As `reduction` says."""
        return call_shares(self.reduction, tokens, samples, self.constant_length)

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """The clipped surrogate."""
        corrected = self.correction.of(batch, logp)
        said = clipped_policy(batch, logp, corrected, self.clip, self.clip_higher, dual_clip=self.dual_clip)
        return self.kl.added(said, batch, logp)
