"""`[algorithm.correction]`: tokens that older weights sampled, in a loss made of ratios.

The decoupled PPO objective (arXiv:2505.24298, section 5.2) keeps apart the two jobs of PPO's old policy:

    J = E[ w · min(u A, clip(u, 1 - clip, 1 + clip_higher) A) ]
    u = exp(logp - proximal)         bounds the update: proximal weights are those at the start of the step
    w = exp(proximal - behaviour)    corrects for staleness: behaviour weights sampled the token; no gradient

With one minibatch per step the current weights are the proximal ones, so u is 1 and nothing is clipped; clipping acts
from the second minibatch on, and in plain PPO. Algorithms whose own ratio already bounds what a stale token may do
(cispo, m2po, sapo) have no such table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from areal_actors.algorithms.base import Batch, Need
from areal_actors.algorithms.groups import mean_by
from areal_actors.algorithms.pieces import ratio
from areal_actors.config import Config, NonNegativeFloat

if TYPE_CHECKING:
    from torch import Tensor


class Corrected(msgspec.Struct, frozen=True):
    """What a correction says of the tokens of a batch."""

    anchor: Tensor
    """`[tokens]`, no gradient: the log-probability that ratios are taken to."""
    weight: Tensor | None
    """`[tokens]`, no gradient: what the loss of a token is multiplied with; None is 1."""
    measures: dict[str, Tensor]

    def weighted(self, losses: Tensor) -> Tensor:
        """Losses times their weight."""
        return losses if self.weight is None else losses * self.weight


class Correction(Config):
    """How the loss corrects for tokens that older weights sampled."""

    decoupled: bool = True
    """Ratio to the proximal weights, times the behaviour weight. False: plain PPO, ratio to the behaviour weights."""
    proximal: Literal["recomputed", "loglinear"] = "recomputed"
    """`recomputed` by a forward pass where the step has several updates, exactly. `loglinear` spares that pass: between
    behaviour and current log-probability, in proportion to the weight versions; the first update of a step, whose own pass has
    them, takes them exactly."""
    weight: Literal["capped", "masked", "off"] = "capped"
    """`capped`: weights beyond the bounds are set to the nearer bound. `masked`: such tokens count for nothing (but still in
    the mean's divisor). `off`: the weight is 1, so nothing corrects for staleness."""
    level: Literal["token", "sequence"] = "token"
    """A weight per token, or the geometric mean over the row for each of its tokens."""
    highest: NonNegativeFloat = 5.0
    """Largest weight; 0 sets no bound."""
    lowest: NonNegativeFloat = 0.0
    """Smallest weight."""

    @property
    def recomputes_proximal(self) -> bool:
        """Whether `Batch.proximal` is used."""
        return self.decoupled and self.proximal == "recomputed"

    @property
    def needs(self) -> frozenset[Need]:
        """Nothing."""
        return frozenset()

    @property
    def models(self) -> Mapping[Literal["reference", "teacher"], str]:
        """None."""
        return {}

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """As `Algorithm.problems`."""
        if not self.decoupled:
            for name, usual in (("proximal", "recomputed"), ("weight", "capped"), ("level", self.__class__().level)):
                if (found := getattr(self, name)) != usual:
                    complaint = f'found "{found}", but with `decoupled = false` there is no behaviour weight; leave one of the two out'
                    yield ("correction", name), complaint
        if self.lowest > self._bound():
            yield ("correction", "lowest"), f"found {self.lowest}, above `highest`, which is {self.highest}; write at most that"

    def of(self, batch: Batch, logp: Tensor) -> Corrected:
        """Anchor and weight of each token."""
        if not self.decoupled:
            return Corrected(batch.behaviour, None, {})
        approximate = self.proximal == "loglinear" and not batch.proximal_exact
        anchor = self._loglinear(batch, logp.detach()) if approximate else batch.proximal
        if self.weight == "off":
            return Corrected(anchor, None, {})
        weight = self._raw_weight(batch, anchor)
        outside = (weight > self._bound()) | (weight < self.lowest)
        weight = weight.masked_fill(outside, 0.0) if self.weight == "masked" else weight.clamp(self.lowest, self._bound())
        return Corrected(anchor, weight, {"behaviour_weight_mean": weight, "behaviour_weight_max": weight, f"{self.weight}_share": outside})

    def _bound(self) -> float:
        return self.highest or math.inf

    def _raw_weight(self, batch: Batch, anchor: Tensor) -> Tensor:
        if self.level == "token":
            return ratio(anchor, batch.behaviour)
        means = mean_by(anchor - batch.behaviour, batch.rows)
        return ratio(means, means.new_zeros(1))[batch.rows]

    def _loglinear(self, batch: Batch, logp: Tensor) -> Tensor:
        """The proximal weights are version v, the current ones on the way to v + 1, those that sampled the token version b.

        Of the way from b to v + 1 the proximal weights have gone (v - b) / (v + 1 - b); a token that they sampled themselves
        has their log-probability already.
        """
        age = (batch.weight_version - batch.versions).clamp(min=0).masked_fill(batch.versions < 0, 0).to(logp.dtype)
        return batch.behaviour + age / (age + 1.0) * (logp - batch.behaviour)


class SequenceCorrection(Correction):
    """The same for an algorithm whose ratio belongs to a whole sequence: so does the weight."""

    level: Literal["sequence"] = "sequence"
    """The geometric mean of the weights over the row, for each of its tokens."""
