"""Geometric-mean policy optimization (GMPO; arXiv:2507.20673, section 3).

GRPO maximizes the arithmetic mean of u A over the tokens of a sequence, GMPO the geometric one, in which single tokens
with extreme ratios u count little. Every ratio is clipped, in the direction of the advantage, before the mean:

    J = E[ mean over sequences of A Π_t min(u_t^s, clip(u_t, e^-c, e^c)^s)^(s / n) ]    s = sign of A, n tokens

A token whose ratio is clipped has no gradient. The bounds are wide: the paper takes e^±0.4, and clips tokens rather
than the sequence, which gave it better results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_actors.core.config import PositiveFloat
from areal_actors.training.algorithms.base import Batch
from areal_actors.training.algorithms.correction import SequenceCorrection
from areal_actors.training.algorithms.importance import importance_weights
from areal_actors.training.algorithms.pieces import LossAggregation
from areal_actors.training.algorithms.policy_gradient import PolicyGradient
from areal_actors.training.algorithms.veto import Corrected

if TYPE_CHECKING:
    from torch import Tensor


class Gmpo(PolicyGradient, tag="gmpo"):
    """`[algorithm] name = "gmpo"`.

    Advantage: reward above the group's mean, over the group's standard deviation
    Surrogate: geometric mean of the clipped token ratios of a sequence × behaviour weight of the sequence
    AReaL: none
    """

    clip: PositiveFloat = 0.4
    """Bound c of the logarithm of a token's ratio, upwards where its advantage is positive, downwards elsewhere."""
    loss_aggregation: LossAggregation = "seq_mean"
    """Mean over sequences; `token_mean` weights them by length."""
    correction: SequenceCorrection = SequenceCorrection()

    def surrogate(self, batch: Batch, logp: Tensor, corrected: Corrected) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the loss of the geometric mean for each token of a sequence."""
        sign, free = batch.advantages.sign(), logp - corrected.anchor
        clipped = free.clamp(-self.clip, self.clip)
        least = sign * (sign * free).minimum(sign * clipped)
        ratios = importance_weights(least, batch.sequences, "sequence", "geometric", corrected.vetoed)
        return -batch.advantages * ratios, {"clip_frac": sign * free > sign * clipped}
