"""Group sequence policy optimization (GSPO; arXiv:2507.18071, equations 5 to 7).

Ratios are per sequence, like rewards: the geometric mean of the token ratios, clipped as a whole. All sequences have the same
weight, whatever their length. The bounds are narrow because a mean moves little.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_actors.core.config import PositiveFloat, PositiveInt
from areal_actors.training.algorithms.base import Advantages, Algorithm, Batch, StepTokens, TokenLosses
from areal_actors.training.algorithms.correction import SequenceCorrection
from areal_actors.training.algorithms.groups import group_normalized
from areal_actors.training.algorithms.importance import importance_weights
from areal_actors.training.algorithms.kl import Kl
from areal_actors.training.algorithms.pieces import AboveOne, LossAggregation, call_shares
from areal_actors.training.algorithms.shaping import Shaping, broadcast_to_tokens, check_group_size
from areal_actors.training.algorithms.surrogate import clipped_policy

if TYPE_CHECKING:
    from torch import Tensor


class Gspo(Algorithm, tag="gspo"):
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
    dual_clip: AboveOne | None = None
    """Upper bound of the loss of a sequence with negative advantage, in multiples of |A| (arXiv:1912.09729); unbounded if not set."""
    loss_aggregation: LossAggregation = "seq_mean"
    """Mean over sequences; `token_mean` weights them by length."""
    constant_length: PositiveInt = 512
    """Divisor under `loss_aggregation = "constant"`, such as the longest completion."""
    correction: SequenceCorrection = SequenceCorrection()
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
        """Normalizes rewards within their group."""
        rewards = self.kl.subtract_kl(step, self.shaping.apply(step.rewards))
        return broadcast_to_tokens(step, group_normalized(rewards, step.samples, step.groups), self.kl, self.shaping)

    def shares(self, tokens: Tensor, samples: Tensor) -> Tensor:
        """Returns the weights of `loss_aggregation`."""
        return call_shares(self.loss_aggregation, tokens, samples, self.constant_length)

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """Returns the clipped surrogate of the sequence for each of its tokens."""
        corrected = self.correction.correct(batch, logp)
        ratios = importance_weights(logp - corrected.anchor, batch.rows, "sequence", "geometric", corrected.vetoed)
        losses = clipped_policy(batch, logp, corrected, self.clip, self.clip_higher, dual_clip=self.dual_clip, ratios=ratios)
        return self.kl.add_kl_loss(losses, batch, logp)
