"""The veto: tokens whose importance weight is catastrophic are not trained, whatever else a correction does.

A log-probability that is wrong by many nats (a broken engine, a corrupted record, a token that the sampler could not have
sampled) would have the largest weight of all: the cap under truncated importance sampling, and under sequence level it would
lift or sink its whole sequence. So it is masked before any mean, product or bound is computed. verl has it as
`rollout_token_veto_threshold`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from areal_actors.algorithms.base import Batch, Need
from areal_actors.algorithms.groups import sum_by
from areal_actors.config import Config

if TYPE_CHECKING:
    from torch import Tensor

VETO_THRESHOLD = 1e-4
"""Default of `veto_threshold`; 9.2 nats."""

BetweenZeroAndOne = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class Corrected(msgspec.Struct, frozen=True):
    """The correction of the tokens of a batch."""

    anchor: Tensor
    """`[tokens]`, no gradient: the log-probability that ratios are taken to; of a vetoed token always a sound one."""
    weight: Tensor | None
    """`[tokens]`, no gradient: what the loss of a token is multiplied with; None is 1."""
    vetoed: Tensor | None
    """bool `[tokens]`: tokens without a policy loss; None if nothing is vetoed."""
    measures: dict[str, Tensor]

    def weighted(self, losses: Tensor) -> Tensor:
        """Losses times their weight, 0 for vetoed tokens."""
        losses = losses if self.weight is None else losses * self.weight
        return losses if self.vetoed is None else losses.masked_fill(self.vetoed, 0.0)


class Veto(Config):
    """`[algorithm.correction]` of an algorithm whose own ratio to the behaviour weights bounds what an off-policy token can do."""

    veto: Literal["token", "sequence", "off"] = "token"
    """Tokens with a catastrophic weight are not trained: the `token` alone, or every token of its `sequence`. Masked tokens still
    count in the divisor of the mean. `off` trains them like any other."""
    veto_threshold: BetweenZeroAndOne = VETO_THRESHOLD
    """A weight proximal / behaviour below this, or above its reciprocal, is catastrophic; so is one that is not a number."""

    @property
    def needs(self) -> frozenset[Need]:
        """Nothing."""
        return frozenset()

    @property
    def models(self) -> Mapping[Literal["reference", "teacher"], str]:
        """None."""
        return {}

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """None."""
        yield from ()

    def vetoed(self, behaviour: Tensor, proximal: Tensor, rows: Tensor) -> Tensor | None:
        """Tokens that are not trained: three columns `[tokens]` → bool `[tokens]`, or None if the veto is off."""
        if self.veto == "off":
            return None
        catastrophic = beyond(proximal - behaviour, self.veto_threshold)
        if self.veto == "token" or not len(rows):
            return catastrophic
        return (sum_by(catastrophic.to(proximal.dtype), rows) > 0)[rows]

    def plain(self, batch: Batch) -> Corrected:
        """Ratios to the behaviour weights, and no weight: the correction is the algorithm's own."""
        vetoed = self.vetoed(batch.behaviour, batch.proximal, batch.rows)
        return Corrected(sound_behaviour(batch, vetoed), None, vetoed, veto_measures(vetoed))


def beyond(log_weights: Tensor, threshold: float) -> Tensor:
    """Log-weights outside ±log(1 / threshold), and those that are not numbers: `[tokens]` → bool `[tokens]`."""
    return ~(log_weights.abs() <= -math.log(threshold))


def sound_behaviour(batch: Batch, vetoed: Tensor | None) -> Tensor:
    """Behaviour log-probabilities `[tokens]`; of vetoed tokens the proximal ones, so that no ratio of theirs is ever computed."""
    return batch.behaviour if vetoed is None else batch.proximal.where(vetoed, batch.behaviour)


def veto_measures(vetoed: Tensor | None) -> dict[str, Tensor]:
    """`vetoed_share`, where there is a veto."""
    return {} if vetoed is None else {"vetoed_share": vetoed}
