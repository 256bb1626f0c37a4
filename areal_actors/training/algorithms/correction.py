"""`[algorithm.correction]`: off-policy correction of tokens sampled by other weights or another engine.

The decoupled PPO objective (arXiv:2505.24298, section 5.2) separates the two roles of PPO's old policy:

    J = E[ w · min(u A, clip(u, 1 - clip, 1 + clip_higher) A) ]
    u = exp(logp - proximal)         bounds the update; proximal weights are those at the start of the step
    w = exp(proximal - behaviour)    corrects for off-policy tokens: behaviour is recorded by the engine; no gradient

The log-weight of a token is the sum of two terms:

    log w = (proximal - rescored) + (rescored - behaviour)
             staleness               engine mismatch

`rescored` is the trainer's own log-probability under the weights that sampled the token. By default one weight corrects
for both terms. With `[algorithm.correction.mismatch]` each has its own weight, and the loss is multiplied by both. If
`rescored` is unknown (no copy of those weights), the mismatch of the token counts as staleness: its total weight is
bounded as without that table.

With one minibatch per step the current weights are the proximal ones, so u is 1 and nothing is clipped: only the bounds
of the weight limit a stale step. Algorithms whose own ratio already bounds stale tokens (cispo, m2po, sapo) have only
the veto in this table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from areal_actors.core.config import Config, NonNegativeFloat
from areal_actors.training.algorithms.base import Batch, Need, Problem, require
from areal_actors.training.algorithms.importance import (
    Aggregation,
    ImportanceSampling,
    Level,
    bound_weights,
    importance_weights,
)
from areal_actors.training.algorithms.veto import Corrected, Veto

if TYPE_CHECKING:
    from torch import Tensor

OUTSIDE: Mapping[ImportanceSampling, str] = {"truncate": "truncated", "mask": "masked", "clip": "clipped"}
"""Names of metrics: the fraction of tokens whose weight is outside of its bounds."""


class Mismatch(Config):
    """`[algorithm.correction.mismatch]`: a separate importance weight for training-inference mismatch.

    It costs a forward pass over the tokens of each older weight version of the step; the trainer must keep copies of
    those weights (`trainer.older_weights`).
    """

    importance_sampling: ImportanceSampling = "off"
    """As `correction.importance_sampling`, of exp(rescored - behaviour). `off`: one weight for mismatch and staleness
    together."""
    level: Level = "token"
    """As `correction.level`."""
    aggregation: Aggregation = "geometric"
    """As `correction.aggregation`."""
    highest: NonNegativeFloat = 5.0
    """Largest weight; 0 means unbounded. Both bounds as in IcePop (arXiv:2510.18855)."""
    lowest: NonNegativeFloat = 0.5
    """Smallest weight."""


class Correction(Veto):
    """Off-policy correction of the loss: importance weights per token or sequence, and the veto."""

    decoupled: bool = True
    """True: ratio to the proximal weights, times the behaviour weight. False: plain PPO, ratio to the behaviour
    weights."""
    proximal: Literal["recomputed", "loglinear"] = "recomputed"
    """`recomputed`: exact, by an extra forward pass if the step has several updates. `loglinear` skips that pass:
    interpolated between behaviour and current log-probability in proportion to the weight versions; exact in the first
    update of a step, whose own pass computes them."""
    importance_sampling: ImportanceSampling = "truncate"
    """`truncate` (truncated importance sampling, TIS): weights beyond the bounds are set to the nearer bound. `mask`
    (MIS): such tokens have weight 0 (but count in the divisor of the mean). `clip`: as in PPO, tokens beyond a bound in
    the direction of their advantage have weight 0, and other weights are at most `highest`. `off`: the weight is 1,
    without correction for staleness."""
    level: Level = "token"
    """One weight per token, or one per sequence, shared by its tokens."""
    aggregation: Aggregation = "geometric"
    """Weight of a sequence under `level = "sequence"`: geometric mean or product of its tokens' weights."""
    highest: NonNegativeFloat = 5.0
    """Largest weight; 0 means unbounded."""
    lowest: NonNegativeFloat = 0.0
    """Smallest weight."""
    mismatch: Mismatch = Mismatch()
    """A weight of its own for the difference between engine and trainer."""

    @property
    def recomputes_proximal(self) -> bool:
        """True if `Batch.proximal` is the anchor of ratios."""
        return self.decoupled and self.proximal == "recomputed"

    @property
    def needs(self) -> frozenset[Need]:
        """Log-probabilities under older weights, if the mismatch has its own weight."""
        return frozenset({"rescored"}) if self.mismatch.importance_sampling != "off" else frozenset()

    def problems(self) -> Iterator[Problem]:
        """Yields the problems of the settings; see `Algorithm.problems`."""
        if not self.decoupled:
            found_and_default = {
                ("proximal",): (self.proximal, "recomputed"),
                ("importance_sampling",): (self.importance_sampling, "truncate"),
                ("level",): (self.level, self.__class__().level),
                ("aggregation",): (self.aggregation, "geometric"),
                ("mismatch", "importance_sampling"): (self.mismatch.importance_sampling, "off"),
            }
            for key, (value, default) in found_and_default.items():
                if value != default:
                    message = (
                        f'found "{value}", but with `decoupled = false` there is no behaviour weight; leave one of the'
                        " two out"
                    )
                    yield ("correction", *key), message
        yield from _bound_problems(("correction",), self)
        yield from _bound_problems(("correction", "mismatch"), self.mismatch)

    def correct(self, batch: Batch, logp: Tensor) -> Corrected:
        """Returns the anchor and importance weight of each token."""
        plain = super().correct(batch, logp)
        if not self.decoupled:
            return plain
        approximate = self.proximal == "loglinear" and not batch.proximal_exact
        anchor = self._loglinear(batch, plain.anchor, logp.detach()) if approximate else batch.proximal
        parts: list[tuple[Correction | Mismatch, Tensor, str]] = [(self, anchor - plain.anchor, "weight")]
        if self.mismatch.importance_sampling != "off":
            mismatch = require(batch.rescored, "rescored") - plain.anchor
            mismatch = mismatch.masked_fill(mismatch.isnan(), 0.0)  # unknown: it counts as staleness
            parts = [(self, anchor - plain.anchor - mismatch, "weight"), (self.mismatch, mismatch, "mismatch")]
        weight: Tensor | None = None
        measures: dict[str, Tensor] = {}
        for table, log_weights, prefix in parts:
            if table.importance_sampling == "off":
                continue
            raw = importance_weights(log_weights, batch.sequences, table.level, table.aggregation, plain.vetoed)
            own, outside = bound_weights(
                raw, table.importance_sampling, table.lowest, table.highest or math.inf, batch.advantages
            )
            measures |= {f"{prefix}_{OUTSIDE[table.importance_sampling]}_frac": outside}
            weight = own if weight is None else weight * own
        if weight is not None:
            measures = {"behaviour_weight_mean": weight, "behaviour_weight_max": weight, **measures}
        return Corrected(anchor, weight, plain.vetoed, measures | plain.measures)

    def _loglinear(self, batch: Batch, behaviour: Tensor, logp: Tensor) -> Tensor:
        """Returns log-probabilities interpolated between behaviour (version b) and current weights (version v + 1).

        The proximal weights are version v, at (v - b) / (v + 1 - b) between the two; tokens of version v keep their
        recorded log-probability.
        """
        age = (batch.weight_version - batch.versions).clamp(min=0).masked_fill(batch.versions < 0, 0).to(logp.dtype)
        return behaviour + age / (age + 1.0) * (logp - behaviour)


class SequenceCorrection(Correction):
    """Correction of an algorithm with sequence ratios: the weight is per sequence, too."""

    level: Literal["sequence"] = "sequence"
    """One weight per sequence, shared by its tokens."""


def _bound_problems(path: tuple[str, ...], table: Correction | Mismatch) -> Iterator[Problem]:
    """Yields contradictory bounds, and an aggregation without a sequence."""
    if table.lowest > (table.highest or math.inf):
        yield (
            (*path, "lowest"),
            f"found {table.lowest}, above `highest` = {table.highest}; write at most {table.highest}",
        )
    if table.aggregation != "geometric" and table.level == "token":
        message = (
            f'found "{table.aggregation}", but token weights are not aggregated; write level = "sequence", or leave'
            " it out"
        )
        yield (*path, "aggregation"), message
