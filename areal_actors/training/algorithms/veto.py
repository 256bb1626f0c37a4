"""The veto: tokens with a catastrophic importance weight are not trained, whatever the correction.

A log-probability that is wrong by many nats (a broken engine, a corrupted record, a token that the sampler could not
have sampled) would have the largest weight: the cap under truncated importance sampling, and it would dominate the
weight of its sequence. So it is masked before any mean, product or bound is computed. In verl:
`rollout_token_veto_threshold`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from areal_actors.training.algorithms.base import Batch, Component
from areal_actors.training.algorithms.groups import sum_by

if TYPE_CHECKING:
    from torch import Tensor

VETO_THRESHOLD = 1e-4
"""Default of `veto_threshold`; 9.2 nats."""


class Corrected(msgspec.Struct, frozen=True):
    """Anchors and weights of the tokens of a batch."""

    anchor: Tensor
    """`[tokens]`, no gradient: log-probability in the denominator of ratios; for vetoed tokens the proximal one, so
    that their ratio to the recorded one is never computed."""
    weight: Tensor | None
    """`[tokens]`, no gradient: importance weight of the loss; None means 1."""
    vetoed: Tensor | None
    """bool `[tokens]`: tokens without policy loss; None if the veto is off."""
    measures: dict[str, Tensor]

    def weigh(self, losses: Tensor) -> Tensor:
        """Returns losses times their weight, 0 for vetoed tokens."""
        losses = losses if self.weight is None else losses * self.weight
        return losses if self.vetoed is None else losses.masked_fill(self.vetoed, 0.0)


class Veto(Component):
    """`[algorithm.correction]` of an algorithm whose own ratio to the behaviour weights bounds off-policy tokens."""

    veto: Literal["token", "sequence", "off"] = "token"
    """Tokens with a catastrophic weight are not trained: the `token` alone, or every token of its `sequence`. Masked
    tokens still count in the divisor of the mean. `off` trains them like any other."""
    veto_threshold: Annotated[float, msgspec.Meta(gt=0, lt=1)] = VETO_THRESHOLD
    """A weight proximal / behaviour below this, or above its reciprocal, is catastrophic; so is one that is not a
    number."""

    @property
    def recomputes_proximal(self) -> bool:
        """True if `Batch.proximal` is the anchor of ratios."""
        return False

    def veto_mask(self, behaviour: Tensor, proximal: Tensor, sequences: Tensor) -> Tensor | None:
        """Returns the tokens that are not trained.

        Three columns `[tokens]` → bool `[tokens]`, or None if the veto is off.
        """
        if self.veto == "off":
            return None
        catastrophic = is_catastrophic(proximal - behaviour, self.veto_threshold)
        if self.veto == "token" or not len(sequences):
            return catastrophic
        return (sum_by(catastrophic.to(proximal.dtype), sequences) > 0)[sequences]

    def correct(self, batch: Batch, logp: Tensor) -> Corrected:  # noqa: ARG002 - `Correction` interpolates with it
        """Returns the anchor and importance weight of each token: here behaviour log-probabilities, and no weight."""
        vetoed = self.veto_mask(batch.behaviour, batch.proximal, batch.sequences)
        if vetoed is None:
            return Corrected(batch.behaviour, None, None, {})
        return Corrected(batch.proximal.where(vetoed, batch.behaviour), None, vetoed, {"vetoed_frac": vetoed})


def is_catastrophic(log_weights: Tensor, threshold: float) -> Tensor:
    """Returns True for log-weights outside ±log(1 / threshold) or NaN: `[tokens]` → bool `[tokens]`."""
    return ~(log_weights.abs() <= -math.log(threshold))
