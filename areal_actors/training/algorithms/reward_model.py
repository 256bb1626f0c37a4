"""A reward model: a scalar head that scores whole conversations, learned from preference pairs.

In the Bradley-Terry model the log-odds of a preference are the difference of two scores; its negative log-likelihood is
-log σ(chosen - rejected) (arXiv:1706.03741, equation 1; arXiv:2203.02155, equation 1). It depends only on differences:
`center_coefficient` adds c (chosen + rejected)², which keeps scores around 0 (arXiv:2312.09244, equation 2).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from areal_actors.core.config import NonNegativeFloat, PositiveInt
from areal_actors.training.algorithms.base import Advantages, Algorithm, Batch, StepTokens, TokenLosses
from areal_actors.training.algorithms.pairs import PAIR, group_size_problems, negative_log_sigmoid, pair_accuracy, pair_sums, row_weights
from areal_actors.training.algorithms.pieces import call_shares

if TYPE_CHECKING:
    from torch import Tensor


class RewardModel(Algorithm, tag="reward_model"):
    """`[algorithm] name = "reward_model"`. Each row has one trained position, which scores the conversation."""

    head: ClassVar[Literal["tokens", "value"]] = "value"
    learns_from: ClassVar[Literal["episodes", "examples"]] = "examples"
    whole_groups: ClassVar[bool] = True

    group_size: PositiveInt = PAIR
    """The two conversations of a pair."""
    center_coefficient: NonNegativeFloat = 0.0
    """c: strength of the penalty that centers the scores of a pair on 0."""

    @property
    def recomputes_proximal(self) -> bool:
        """False: nothing was sampled."""
        return False

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yields the problems of the settings; see `Algorithm.problems`."""
        yield from group_size_problems(self.group_size)

    def advantages(self, step: StepTokens) -> Advantages:
        """Returns weights that turn measures into means over pairs."""
        return row_weights(step)

    def shares(self, tokens: Tensor, samples: Tensor) -> Tensor:
        """Returns the weights of a mean over pairs."""
        return call_shares("seq_mean", tokens, samples, length=1)

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """Returns the loss of the pair at both scored positions; `logp` holds the scores, float32 `[rows]` with gradient."""
        chosen, rejected = pair_sums(logp, batch)
        losses = negative_log_sigmoid(chosen - rejected) + self.center_coefficient * (chosen + rejected).square()
        measures = {
            "accuracy": pair_accuracy(chosen, rejected),
            "margin": chosen - rejected,
            "chosen_score": chosen,
            "rejected_score": rejected,
        }
        return TokenLosses(losses=losses, measures={name: column.detach() * batch.advantages for name, column in measures.items()})
