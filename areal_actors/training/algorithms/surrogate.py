"""Clipped policy loss shared by most algorithms, with their own advantages, bounds and ratios."""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_actors.training.algorithms.base import Batch, TokenLosses
from areal_actors.training.algorithms.pieces import clipped, divergence, dual_clipped, is_clipped, ratio
from areal_actors.training.algorithms.veto import Corrected

if TYPE_CHECKING:
    from torch import Tensor


def clipped_policy(
    batch: Batch,
    logp: Tensor,
    corrected: Corrected,
    below: float,
    above: float | None = None,
    *,
    dual_clip: float | None = None,
    ratios: Tensor | None = None,
) -> TokenLosses:
    """Returns PPO's clipped surrogate of each token, times its weight; 0 for vetoed tokens.

    Args:
        batch: the tokens.
        logp: float32 `[tokens]` with gradient, under the current weights.
        corrected: anchor of the ratios, and weights of the losses.
        below: lower clip: ratios are bounded by 1 - below.
        above: upper clip: ratios are bounded by 1 + above; `below` if not given.
        dual_clip: upper bound of the loss of a token with negative advantage, in multiples of |A|.
        ratios: `[tokens]` with gradient; token ratios to the anchor if not given.
    """
    above = below if above is None else above
    ratios = ratio(logp, corrected.anchor) if ratios is None else ratios
    losses = clipped(ratios, batch.advantages, below, above)
    measures = {
        "clip_frac": is_clipped(ratios, batch.advantages, below, above),
        "approx_kl": divergence(logp, batch.behaviour),
    }
    if dual_clip is not None:
        bounded = dual_clipped(losses, batch.advantages, dual_clip)
        measures["dual_clip_frac"] = bounded < losses
        losses = bounded
    measures |= corrected.measures
    return TokenLosses(losses=corrected.weighted(losses), measures={name: column.detach() for name, column in measures.items()})
