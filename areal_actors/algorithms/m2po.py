"""Second-moment trust policy optimization (M2PO; arXiv:2510.01161, section 5).

Stale tokens are trained with their full ratio, but for the outliers: of the squares of log(proximal / behaviour) over the whole
step the largest are left out, as few as bring the mean of the others (equation 4) below the threshold (algorithm 1).

    J = E[ mean over kept tokens of u A ]    u = exp(logp - behaviour)    equation 5

What is left out depends on the step, not on how it is cut into micro-batches. The paper divides by all tokens, here the mean is
over those kept. The paper (v2) leaves out only tokens that PPO could clip (u > 1 with A > 0, u < 1 with A < 0); here, as in
AReaL, any. The mask bounds staleness by itself: the `correction` table holds the veto only. Vetoed tokens are the first to be left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from areal_actors.algorithms.base import Advantages, Algorithm, Batch, Need, StepTokens, TokenLosses, given
from areal_actors.algorithms.groups import group_normalized
from areal_actors.algorithms.kl import Kl
from areal_actors.algorithms.pieces import Reduction, call_shares
from areal_actors.algorithms.shaping import Shaping, lonely, spread
from areal_actors.algorithms.surrogate import clipped_policy
from areal_actors.algorithms.veto import Veto
from areal_actors.config import PositiveFloat, PositiveInt

if TYPE_CHECKING:
    from torch import Tensor


def within_second_moment(squares: Tensor, threshold: float) -> Tensor:
    """The tokens to keep: as many as possible, smallest first, with a mean strictly below the threshold; at least one.

    Args:
        squares: float64 `[tokens]`, squared differences of log-probability.
        threshold: for the mean of those kept.

    Returns:
        bool `[tokens]`.
    """
    ascending, order = squares.sort(stable=True)
    means = ascending.cumsum(0) / ascending.new_ones(len(squares)).cumsum(0)
    kept = (means < threshold).to(squares.dtype)
    kept[:1] = 1.0
    return (squares.new_zeros(len(squares)).index_add(0, order, kept)) > 0


class M2po(Algorithm, tag="m2po"):
    """`[algorithm] name = "m2po"`.

    Advantage: reward above the group's mean, over the group's standard deviation
    Surrogate: token ratio to the behaviour weights; clipped with `clip`
    Filter: tokens with the largest (log proximal / behaviour)², until the mean of the others is below `threshold`
    AReaL: `m2_threshold`
    """

    threshold: PositiveFloat = 0.04
    """The mean of the squares of kept tokens is below it."""
    clip: PositiveFloat | None = None
    """How far a token's ratio may move; not bounded if not set."""
    reduction: Reduction = "token"
    """Mean over the step's tokens, over tokens then episodes, or by a constant."""
    constant_length: PositiveInt = 512
    """Divisor under `reduction = "constant"`: the longest completion, say."""
    correction: Veto = Veto()
    kl: Kl = Kl()
    shaping: Shaping = Shaping()

    @property
    def needs(self) -> frozenset[Need]:
        """Those of the distance to the reference, and the proximal log-probabilities."""
        return super().needs | {"proximal"}

    @property
    def recomputes_proximal(self) -> bool:
        """Ratios are to the behaviour weights."""
        return False

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Groups of one, too."""
        yield from (*lonely(self.group_size), *super().problems())

    def advantages(self, step: StepTokens) -> Advantages:
        """Rewards normalised within their group, and the tokens to keep."""
        rewards = self.kl.charged(step, self.shaping.of(step.rewards))
        advantages = spread(step, group_normalized(rewards, step.samples, step.groups), self.kl, self.shaping)
        seen = step.rows >= 0 if advantages.kept is None else advantages.kept
        squares = (given(step.proximal, "proximal") - step.behaviour).to(rewards.dtype).square()
        vetoed = self.correction.vetoed(step.behaviour, given(step.proximal, "proximal"), step.rows)
        squares = (squares if vetoed is None else squares.masked_fill(vetoed, math.inf))[seen]
        sound = squares[squares.isfinite()]
        within = within_second_moment(squares, self.threshold)
        metrics = {
            "second_moment": float(sound.mean()) if len(sound) else 0.0,
            "second_moment_kept": float(squares[within].mean()) if len(sound) else 0.0,
            **advantages.metrics,
            "second_moment_masked_share": float((~within).to(rewards.dtype).mean()) if len(squares) else 0.0,
        }
        return msgspec.structs.replace(advantages, kept=seen.masked_scatter(seen, within), metrics=metrics)

    def shares(self, tokens: Tensor, samples: Tensor) -> Tensor:
        """As `reduction` says."""
        return call_shares(self.reduction, tokens, samples, self.constant_length)

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """The ratio's surrogate."""
        return self.kl.added(clipped_policy(batch, logp, self.correction.plain(batch), self.clip or math.inf), batch, logp)
