"""Group sequence policy optimization (GSPO; arXiv:2507.18071, equations 5 to 7).

Rewards belong to sequences, and so do ratios: that of a sequence is the geometric mean of its tokens' ratios, and it is clipped
as a whole. Each sequence weighs the same, however long it is. The bounds are narrow because a mean moves little.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_actors.algorithms.base import Advantages, Algorithm, Batch, StepTokens, TokenLosses
from areal_actors.algorithms.correction import SequenceCorrection
from areal_actors.algorithms.groups import group_normalized
from areal_actors.algorithms.importance import importance_weights
from areal_actors.algorithms.kl import Kl
from areal_actors.algorithms.pieces import AboveOne, Reduction, call_shares
from areal_actors.algorithms.shaping import Shaping, lonely, spread
from areal_actors.algorithms.surrogate import clipped_policy
from areal_actors.config import PositiveFloat, PositiveInt

if TYPE_CHECKING:
    from torch import Tensor


class Gspo(Algorithm, tag="gspo"):
    """`[algorithm] name = "gspo"`.

    Advantage: reward above the group's mean, over the group's standard deviation
    Surrogate: clipped sequence ratio × behaviour weight of the sequence
    AReaL: `importance_sampling_level: sequence`; its weights by length: `reduction = "token"`, its bounds `clip = 0.4`, `clip_higher = 0.4`
    """

    clip: PositiveFloat = 3e-4
    """How far a sequence's ratio may fall in one step."""
    clip_higher: PositiveFloat = 4e-4
    """How far it may rise."""
    dual_clip: AboveOne | None = None
    """Bound of the loss of a sequence with negative advantage, in multiples of |A| (arXiv:1912.09729); not bounded if not set."""
    reduction: Reduction = "sequence"
    """Mean over sequences; `token` weighs them by their length."""
    constant_length: PositiveInt = 512
    """Divisor under `reduction = "constant"`: the longest completion, say."""
    correction: SequenceCorrection = SequenceCorrection()
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
        """Rewards normalised within their group."""
        rewards = self.kl.charged(step, self.shaping.of(step.rewards))
        return spread(step, group_normalized(rewards, step.samples, step.groups), self.kl, self.shaping)

    def shares(self, tokens: Tensor, samples: Tensor) -> Tensor:
        """As `reduction` says."""
        return call_shares(self.reduction, tokens, samples, self.constant_length)

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """The clipped surrogate of the sequence, the same for each of its tokens."""
        corrected = self.correction.of(batch, logp)
        ratios = importance_weights(logp - corrected.anchor, batch.rows, "sequence", "geometric", corrected.vetoed)
        said = clipped_policy(batch, logp, corrected, self.clip, self.clip_higher, dual_clip=self.dual_clip, ratios=ratios)
        return self.kl.added(said, batch, logp)
