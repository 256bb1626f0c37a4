"""A reward model: a scalar head that scores whole conversations, learned from preference pairs.

In the Bradley-Terry model the log-odds of a preference are the difference of two scores; its negative log-likelihood is
-log σ(chosen - rejected) (arXiv:1706.03741, equation 1; arXiv:2203.02155, equation 1). It depends only on differences:
`center_coefficient` adds c (chosen + rejected)², which keeps scores around 0 (arXiv:2312.09244, equation 2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from areal_actors.core.config import NonNegativeFloat
from areal_actors.training.algorithms.base import Batch, TokenLosses
from areal_actors.training.algorithms.pairs import PairAlgorithm, negative_log_sigmoid, pair_losses, pair_sums

if TYPE_CHECKING:
    from torch import Tensor


class RewardModel(PairAlgorithm, tag="reward_model"):
    """`[algorithm] name = "reward_model"`. Each sequence has one trained position, which scores the conversation."""

    head: ClassVar[Literal["tokens", "value"]] = "value"

    center_coefficient: NonNegativeFloat = 0.0
    """c: strength of the penalty that centers the scores of a pair on 0."""

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """Returns the loss of the pair at both scored positions.

        `logp` holds the scores, float32 `[sequences]` with gradient.
        """
        chosen, rejected = pair_sums(logp, batch)
        losses = negative_log_sigmoid(chosen - rejected) + self.center_coefficient * (chosen + rejected).square()
        return pair_losses(losses, chosen, rejected, batch, "score")
