"""Building blocks of policy losses: ratios, divergences, surrogates, and loss aggregation.

All code uses tensor methods, so that a process that only reads the recipe never imports torch. A column "per token" has
one entry for each trained token and no others: no masks are needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from areal_actors.training.algorithms.groups import sum_by

if TYPE_CHECKING:
    from torch import Tensor

LossAggregation = Literal["token_mean", "seq_mean", "constant"]
"""Aggregation of token losses to the loss of a step; see `call_shares`."""

Estimator = Literal["k1", "k2", "k3"]

LOG_RATIO_LIMIT = 20.0
"""Bound of |log ratio| in ratios and divergences, so that none overflows."""


def ratio(logp: Tensor, reference: Tensor | float = 0.0) -> Tensor:
    """Returns the probability ratio of current weights to the reference, or exp of log-weights.

    exp(logp - reference).
    """
    return (logp - reference).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def estimate(estimator: Estimator, difference: Tensor) -> Tensor:
    """Returns estimates of KL(p ‖ q), given d = log p - log q of tokens sampled by p: `[n]` → `[n]`.

    k1 = d, k2 = d² / 2, k3 = exp(-d) - 1 + d (Schulman, "Approximating KL divergence", 2020).
    """
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2.0
    bounded = difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return (-bounded).exp() - 1.0 + bounded


def clipped_surrogate(
    ratios: Tensor, advantages: Tensor, below: float, above: float | None = None, dual_clip: float | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns PPO's clipped surrogate as a loss.

    max(-A u, -A clip(u, 1 - below, 1 + above)) (arXiv:1707.06347, equation 7).

    Args:
        ratios: u of each token, `[tokens]` with gradient.
        advantages: A of each token, `[tokens]`.
        below: lower clip.
        above: upper clip; `below` if not given.
        dual_clip: upper bound of the loss of a token with negative advantage, in multiples of |A| (arXiv:1912.09729,
            equation 5).

    Returns:
        Losses `[tokens]`, and measures: `clip_frac`, tokens without gradient because the clipped term is the larger
        loss, and `dual_clip_frac`, if bounded.
    """
    free = -advantages * ratios
    clipped = -advantages * ratios.clamp(1.0 - below, 1.0 + (below if above is None else above))
    losses, measures = free.maximum(clipped), {"clip_frac": free < clipped}
    if dual_clip is not None:
        bounded = losses.minimum(dual_clip * advantages.abs()).where(advantages < 0, losses)
        measures["dual_clip_frac"] = bounded < losses
        losses = bounded
    return losses, measures


def call_shares(loss_aggregation: LossAggregation, tokens: Tensor, samples: Tensor, length: int) -> Tensor:
    """Returns the weight of each trained token of a call in the loss of the step.

    Weights are computed before the step is split into micro-batches, and token losses are summed with them, so the loss
    and its gradient do not depend on micro-batches, nor on the sequences of an episode.

    Args:
        loss_aggregation: `token_mean`: mean over all trained tokens. `seq_mean`: mean over the trained tokens of each
            sample (an episode, across sequences), then over the samples that have any. `constant`: sum over each sample
            divided by `length`, then mean over all samples (arXiv:2503.20783), so that long answers are not discounted,
            and a fully masked sample does not increase the weight of the others.
        tokens: float64 `[calls]`, number of trained tokens of each call of the update.
        samples: int64 `[calls]`, sample of each call.
        length: divisor of `constant`.

    Returns:
        `[calls]`; 0 for calls without trained tokens.
    """
    trained = (tokens > 0).to(tokens.dtype)
    if loss_aggregation == "token_mean":
        return trained / tokens.sum().clamp(min=1.0)
    of_sample = sum_by(tokens, samples)
    if loss_aggregation == "seq_mean":
        return trained / (of_sample[samples].clamp(min=1.0) * (of_sample > 0).to(tokens.dtype).sum().clamp(min=1.0))
    return trained / (length * int((sum_by(tokens.new_ones(len(tokens)), samples) > 0).sum()))
