"""Importance weights: from log-weights of tokens to bounded weights, per token or per sequence.

Truncated importance sampling (TIS; arXiv:2505.24298 and arXiv:2104.06294 cap at a constant) sets a weight beyond its
bounds to the nearer bound: biased, with bounded variance. Masked importance sampling (MIS; IcePop, arXiv:2510.18855,
equation 4, masks on both sides) removes such tokens: the others keep their exact weight. The weight of a sequence is
the product of its tokens' weights (exact, but its variance grows with the length) or their geometric mean (GSPO,
arXiv:2507.18071, equation 7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from areal_actors.training.algorithms.groups import sum_by
from areal_actors.training.algorithms.pieces import ratio

if TYPE_CHECKING:
    from torch import Tensor

ImportanceSampling = Literal["truncate", "mask", "clip", "off"]
Level = Literal["token", "sequence"]
Aggregation = Literal["geometric", "product"]


def importance_weights(
    log_weights: Tensor, sequences: Tensor, level: Level, aggregation: Aggregation, vetoed: Tensor | None
) -> Tensor:
    """Returns importance weights before clipping.

    Args:
        log_weights: `[tokens]`, in nats.
        sequences: int64 `[tokens]`: sequence of each token.
        level: `token`: exp of each log-weight. `sequence`: one weight for all tokens of a sequence.
        aggregation: of the log-weights of a sequence: mean (`geometric`) or sum (`product`).
        vetoed: bool `[tokens]`: tokens excluded from means and sums.

    Returns:
        `[tokens]`; 1 for sequences whose tokens are all vetoed.
    """
    if level == "token":
        return ratio(log_weights)
    counted = log_weights.new_ones(len(sequences)) if vetoed is None else (~vetoed).to(log_weights.dtype)
    totals = sum_by(log_weights if vetoed is None else log_weights.masked_fill(vetoed, 0.0), sequences)
    if aggregation == "geometric":
        totals = totals / sum_by(counted, sequences).clamp(min=1.0)
    return ratio(totals)[sequences]


def bound_weights(
    weights: Tensor, weighting: Literal["truncate", "mask", "clip"], lowest: float, highest: float, advantages: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns weights within their bounds (inclusive), and a mask of the tokens changed.

    `[tokens]` and bool `[tokens]`.
    `clip` is PPO's rule (arXiv:1707.06347, equation 7) for a weight: a token with positive advantage that is already
    more than `highest` times as likely as when it was sampled, and one with negative advantage below `lowest`, has
    gradient 0.
    """
    above, below = weights > highest, weights < lowest
    if weighting == "truncate":
        return weights.clamp(lowest, highest), above | below
    outside = (above & (advantages > 0)) | (below & (advantages < 0)) if weighting == "clip" else above | below
    return weights.clamp(max=highest).masked_fill(outside, 0.0), outside
