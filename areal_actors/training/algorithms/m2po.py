"""Second-moment trust policy optimization (M2PO; arXiv:2510.01161, section 5).

Stale tokens are trained with their full ratio, except outliers: the tokens with the largest squares of log(proximal /
behaviour) of the step are masked, as few as bring the mean of the others (equation 4) below the threshold (algorithm
1).

    J = E[ mean over kept tokens of u A ]    u = exp(logp - behaviour)    equation 5

The mask depends on the step, not on its micro-batches. The paper divides by all tokens, here the mean is over the kept
ones. The paper (v2) masks only tokens that PPO could clip (u > 1 with A > 0, u < 1 with A < 0); here, as in AReaL, any.
The mask itself bounds staleness: the `correction` table has only the veto. Vetoed tokens are masked first.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from areal_actors.core.config import PositiveFloat
from areal_actors.training.algorithms.base import Advantages, Batch, Need, StepTokens, require
from areal_actors.training.algorithms.pieces import clipped_surrogate, ratio
from areal_actors.training.algorithms.policy_gradient import PolicyGradient
from areal_actors.training.algorithms.veto import Corrected

if TYPE_CHECKING:
    from torch import Tensor


def within_second_moment(squares: Tensor, threshold: float) -> Tensor:
    """Returns the tokens to keep.

    As many as possible, smallest first, with a mean strictly below the threshold; at least one.

    Args:
        squares: float64 `[tokens]`, squared differences of log-probability.
        threshold: upper bound of the mean of the kept ones.

    Returns:
        bool `[tokens]`.
    """
    ascending, order = squares.sort(stable=True)
    means = ascending.cumsum(0) / ascending.new_ones(len(squares)).cumsum(0)
    kept = (means < threshold).to(squares.dtype)
    kept[:1] = 1.0
    return (squares.new_zeros(len(squares)).index_add(0, order, kept)) > 0


class M2po(PolicyGradient, tag="m2po"):
    """`[algorithm] name = "m2po"`.

    Advantage: reward above the group's mean, over the group's standard deviation
    Surrogate: token ratio to the behaviour weights; clipped with `clip`
    Filter: tokens with the largest (log proximal / behaviour)², until the mean of the others is below `threshold`
    AReaL: `m2_threshold`
    """

    threshold: PositiveFloat = 0.04
    """Upper bound of the mean of the squares of kept tokens."""
    clip: PositiveFloat | None = None
    """ε of PPO: the token ratio is clipped to [1 - clip, 1 + clip]; unbounded if not set."""
    normalize_advantages: bool = False
    """Normalize advantages again, over all episodes of the step."""

    @property
    def needs(self) -> frozenset[Need]:
        """Proximal log-probabilities, and those of the reference if KL is on."""
        return super().needs | {"proximal"}

    def advantages(self, step: StepTokens) -> Advantages:
        """Normalizes rewards within their group, and selects the tokens to keep."""
        advantages = super().advantages(step)
        seen = step.sequences >= 0 if advantages.kept is None else advantages.kept
        squares = (require(step.proximal, "proximal") - step.behaviour).to(step.rewards.dtype).square()
        vetoed = self.correction.veto_mask(step.behaviour, require(step.proximal, "proximal"), step.sequences)
        squares = (squares if vetoed is None else squares.masked_fill(vetoed, math.inf))[seen]
        sound = squares[squares.isfinite()]
        within = within_second_moment(squares, self.threshold)
        metrics = {
            "second_moment": float(sound.mean()) if len(sound) else 0.0,
            "second_moment_kept": float(squares[within].mean()) if len(sound) else 0.0,
            **advantages.metrics,
            "second_moment_masked_frac": float((~within).to(step.rewards.dtype).mean()) if len(squares) else 0.0,
        }
        return msgspec.structs.replace(advantages, kept=seen.masked_scatter(seen, within), metrics=metrics)

    def surrogate(self, batch: Batch, logp: Tensor, corrected: Corrected) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the surrogate of the ratio."""
        return clipped_surrogate(ratio(logp, corrected.anchor), batch.advantages, self.clip or math.inf)
