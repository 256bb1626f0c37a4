"""GSPO-token: GSPO with advantages of single tokens (arXiv:2507.18071, section 4.3, equations 13 and 14).

The ratio of a token has the value of its sequence's and the gradient of the token alone:

    s_t = sg(s) exp(logp_t - sg(logp_t))    s = geometric mean of the token ratios of the sequence

so that the gradient of each token has its own advantage. If all tokens of a sequence have one advantage, value and
gradient of the loss are those of GSPO; they differ where calls of a sequence have rewards of their own
(`task.turn_discount`, rewards by interaction id), whose advantages GSPO mixes.
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


class GspoToken(ClippedPolicy, tag="gspo_token"):
    """`[algorithm] name = "gspo_token"`.

    Advantage: reward above the group's mean, over the group's standard deviation
    Surrogate: clipped sequence ratio with the gradient of each token × behaviour weight of the sequence
    AReaL: none
    """

    clip: PositiveFloat = 3e-4
    """Lower bound of the sequence ratio: 1 - clip."""
    clip_higher: PositiveFloat = 4e-4
    """Upper bound of the sequence ratio: 1 + clip_higher."""
    loss_aggregation: LossAggregation = "seq_mean"
    """Mean over sequences; `token_mean` weights them by length."""
    correction: SequenceCorrection = SequenceCorrection()

    def ratios(self, batch: Batch, logp: Tensor, corrected: Corrected) -> Tensor:
        """Returns the ratio of the sequence with the gradient of each of its tokens."""
        value = logp.detach()
        ratios = importance_weights(
            value - corrected.anchor, batch.sequences, "sequence", "geometric", corrected.vetoed
        )
        return ratios * (logp - value).exp()
