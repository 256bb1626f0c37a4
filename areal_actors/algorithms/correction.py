"""`[algorithm.correction]`: tokens that other weights, or another engine, sampled, in a loss made of ratios.

The decoupled PPO objective (arXiv:2505.24298, section 5.2) keeps apart the two jobs of PPO's old policy:

    J = E[ w · min(u A, clip(u, 1 - clip, 1 + clip_higher) A) ]
    u = exp(logp - proximal)         bounds the update: proximal weights are those at the start of the step
    w = exp(proximal - behaviour)    corrects for off-policy tokens: behaviour is what the engine recorded; no gradient

The log-weight of a token has two causes, which add up to it exactly:

    log w = (proximal - rescored) + (rescored - behaviour)
             staleness               engine mismatch

`rescored` is the trainer's own log-probability under the weights that sampled the token. By default one weight corrects for both
causes. With `[algorithm.correction.mismatch]` each has its own weight, and the loss is multiplied with both. Where `rescored` is
not known (no copy of those weights), the token's mismatch counts as staleness: its total weight is bounded as without that table.

With one minibatch per step the current weights are the proximal ones, so u is 1 and nothing is clipped: then the bounds of the
weight are all that holds a stale step. Algorithms whose own ratio already bounds what a stale token may do (cispo, m2po, sapo)
have only the veto under this name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from areal_actors.algorithms.base import Batch, Need, given
from areal_actors.algorithms.importance import Aggregation, Level, Weighting, bounded, importance_weights
from areal_actors.algorithms.veto import Corrected, Veto, sound_behaviour, veto_measures
from areal_actors.config import Config, NonNegativeFloat

if TYPE_CHECKING:
    from torch import Tensor

Problem = tuple[tuple[str, ...], str]


class Mismatch(Config):
    """`[algorithm.correction.mismatch]`: a weight of its own for what the engine and the trainer disagree about.

    It costs a forward pass over the tokens of each older weight version of the step, of which the trainer has to keep copies
    (`trainer.older_weights`).
    """

    weight: Weighting = "off"
    """As `correction.weight`, of exp(rescored - behaviour). `off`: one weight for mismatch and staleness together."""
    level: Level = "token"
    """As `correction.level`."""
    aggregation: Aggregation = "geometric"
    """As `correction.aggregation`."""
    highest: NonNegativeFloat = 5.0
    """Largest weight; 0 sets no bound. Both bounds as in IcePop (arXiv:2510.18855)."""
    lowest: NonNegativeFloat = 0.5
    """Smallest weight."""


class Correction(Veto):
    """How the loss corrects for tokens that other weights or another engine sampled."""

    decoupled: bool = True
    """Ratio to the proximal weights, times the behaviour weight. False: plain PPO, ratio to the behaviour weights."""
    proximal: Literal["recomputed", "loglinear"] = "recomputed"
    """`recomputed` by a forward pass where the step has several updates, exactly. `loglinear` spares that pass: between
    behaviour and current log-probability, in proportion to the weight versions; the first update of a step, whose own pass has
    them, takes them exactly."""
    weight: Weighting = "capped"
    """`capped` (truncated importance sampling, TIS): weights beyond the bounds are set to the nearer bound. `masked` (MIS): such
    tokens count for nothing (but still in the mean's divisor). `clipped`: as PPO clips, tokens beyond a bound in the direction of
    their advantage count for nothing, and other weights are at most `highest`. `off`: the weight is 1, so nothing corrects for
    staleness."""
    level: Level = "token"
    """A weight per token, or one of the row for each of its tokens."""
    aggregation: Aggregation = "geometric"
    """How `level = "sequence"` makes a row's weight of its tokens' weights: their geometric mean, or their product."""
    highest: NonNegativeFloat = 5.0
    """Largest weight; 0 sets no bound."""
    lowest: NonNegativeFloat = 0.0
    """Smallest weight."""
    mismatch: Mismatch = Mismatch()

    @property
    def recomputes_proximal(self) -> bool:
        """Whether `Batch.proximal` is used."""
        return self.decoupled and self.proximal == "recomputed"

    @property
    def needs(self) -> frozenset[Need]:
        """The trainer's log-probabilities under older weights, if the mismatch has a weight of its own."""
        return frozenset({"rescored"}) if self.mismatch.weight != "off" else frozenset()

    def problems(self) -> Iterator[Problem]:
        """As `Algorithm.problems`."""
        if not self.decoupled:
            given_and_usual = {
                ("proximal",): (self.proximal, "recomputed"),
                ("weight",): (self.weight, "capped"),
                ("level",): (self.level, self.__class__().level),
                ("aggregation",): (self.aggregation, "geometric"),
                ("mismatch", "weight"): (self.mismatch.weight, "off"),
            }
            for key, (found, usual) in given_and_usual.items():
                if found != usual:
                    complaint = f'found "{found}", but with `decoupled = false` there is no behaviour weight; leave one of the two out'
                    yield ("correction", *key), complaint
        yield from _bound_problems(("correction",), self)
        yield from _bound_problems(("correction", "mismatch"), self.mismatch)

    def of(self, batch: Batch, logp: Tensor) -> Corrected:
        """Anchor and weight of each token."""
        vetoed = self.vetoed(batch.behaviour, batch.proximal, batch.rows)
        behaviour = sound_behaviour(batch, vetoed)
        if not self.decoupled:
            return Corrected(behaviour, None, vetoed, veto_measures(vetoed))
        approximate = self.proximal == "loglinear" and not batch.proximal_exact
        anchor = self._loglinear(batch, behaviour, logp.detach()) if approximate else batch.proximal
        mismatch = self._mismatch(batch, behaviour)
        parts: list[tuple[Correction | Mismatch, Tensor, str]] = [(self, anchor - behaviour, "weight")]
        if mismatch is not None:
            parts = [(self, anchor - behaviour - mismatch, "weight"), (self.mismatch, mismatch, "mismatch")]
        weight: Tensor | None = None
        measures: dict[str, Tensor] = {}
        for table, log_weights, prefix in parts:
            if table.weight == "off":
                continue
            raw = importance_weights(log_weights, batch.rows, table.level, table.aggregation, vetoed)
            own, outside = bounded(raw, table.weight, table.lowest, table.highest or math.inf, batch.advantages)
            measures |= {f"{prefix}_{table.weight}_share": outside}
            weight = own if weight is None else weight * own
        if weight is not None:
            measures = {"behaviour_weight_mean": weight, "behaviour_weight_max": weight, **measures}
        return Corrected(anchor, weight, vetoed, measures | veto_measures(vetoed))

    def _mismatch(self, batch: Batch, behaviour: Tensor) -> Tensor | None:
        """Log-weights of the engine mismatch `[tokens]`, 0 where it is not known; None if it has no weight of its own."""
        if self.mismatch.weight == "off":
            return None
        difference = given(batch.rescored, "rescored") - behaviour
        return difference.masked_fill(difference.isnan(), 0.0)

    def _loglinear(self, batch: Batch, behaviour: Tensor, logp: Tensor) -> Tensor:
        """The proximal weights are version v, the current ones on the way to v + 1, those that sampled the token version b.

        Of the way from b to v + 1 the proximal weights have gone (v - b) / (v + 1 - b); a token that they sampled themselves
        has their log-probability already.
        """
        age = (batch.weight_version - batch.versions).clamp(min=0).masked_fill(batch.versions < 0, 0).to(logp.dtype)
        return behaviour + age / (age + 1.0) * (logp - behaviour)


class SequenceCorrection(Correction):
    """The same for an algorithm whose ratio belongs to a whole sequence: so does the weight."""

    level: Literal["sequence"] = "sequence"
    """One weight of the row for each of its tokens."""


def _bound_problems(path: tuple[str, ...], table: Correction | Mismatch) -> Iterator[Problem]:
    """Bounds that exclude each other, and an aggregation without a sequence."""
    if table.lowest > (table.highest or math.inf):
        yield (*path, "lowest"), f"found {table.lowest}, above `highest`, which is {table.highest}; write at most that"
    if table.aggregation != "geometric" and table.level == "token":
        complaint = f'found "{table.aggregation}", but weights of tokens are not aggregated; write level = "sequence", or leave it out'
        yield (*path, "aggregation"), complaint
