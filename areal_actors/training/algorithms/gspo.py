"""Group sequence policy optimization (GSPO; arXiv:2507.18071, equations 5 to 7).

Ratios are per sequence, like rewards: the geometric mean of the token ratios, clipped as a whole. All sequences have
the same weight, whatever their length. The bounds are narrow because a mean moves little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_actors.core.config import PositiveFloat
from areal_actors.training.algorithms.base import Batch
from areal_actors.training.algorithms.correction import SequenceCorrection
from areal_actors.training.algorithms.importance import importance_weights
from areal_actors.training.algorithms.pieces import LossAggregation
from areal_actors.training.algorithms.policy_gradient import ClippedPolicy
from areal_actors.training.algorithms.veto import Corrected

if TYPE_CHECKING:
    from torch import Tensor


class Gspo(ClippedPolicy, tag="gspo"):
    """`[algorithm] name = "gspo"`.

    Advantage: reward above the group's mean, over the group's standard deviation
    Surrogate: clipped sequence ratio × behaviour weight of the sequence
    AReaL: `importance_sampling_level: sequence`; its weights by length: `loss_aggregation =
    "token_mean"`, its bounds `clip = 0.4`, `clip_higher = 0.4`
    """

    clip: PositiveFloat = 3e-4
    """Lower bound of the sequence ratio: 1 - clip."""
    clip_higher: PositiveFloat = 4e-4
    """Upper bound of the sequence ratio: 1 + clip_higher."""
    loss_aggregation: LossAggregation = "seq_mean"
    """Mean over sequences; `token_mean` weights them by length."""
    correction: SequenceCorrection = SequenceCorrection()
    normalize_advantages: bool = False
    """Normalize advantages again, over all episodes of the step."""

    def ratios(self, batch: Batch, logp: Tensor, corrected: Corrected) -> Tensor:
        """Returns the ratio of the sequence for each of its tokens."""
        return importance_weights(logp - corrected.anchor, batch.sequences, "sequence", "geometric", corrected.vetoed)
