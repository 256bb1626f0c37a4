"""The pieces that policy losses are made of: ratios, surrogates, and reductions.

Everything is written in methods of tensors, so that a process that only reads the recipe never loads torch. A column
"per token" has one entry for each trained token, and nothing else: there are no masks to forget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from areal_actors.algorithms.groups import sum_by

if TYPE_CHECKING:
    from torch import Tensor

Reduction = Literal["token", "sequence", "constant"]
"""How token losses become the loss of a step; see `call_shares`."""

AboveOne = Annotated[float, msgspec.Meta(gt=1)]

LOG_RATIO_LIMIT = 20.0
"""Beyond e^20 a ratio says nothing but "far away"; ratios and divergences are computed within, so that none overflows."""


# ---------------------------------------------------------------- ratios and surrogates, per token


def ratio(logp: Tensor, reference: Tensor) -> Tensor:
    """How much likelier a token is now than under the reference: exp(logp - reference)."""
    return (logp - reference).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def clipped(ratios: Tensor, advantages: Tensor, below: float, above: float) -> Tensor:
    """PPO's clipped surrogate as a loss: max(-A u, -A clip(u, 1 - below, 1 + above)) (arXiv:1707.06347, equation 7)."""
    return (-advantages * ratios).maximum(-advantages * ratios.clamp(1.0 - below, 1.0 + above))


def is_clipped(ratios: Tensor, advantages: Tensor, below: float, above: float) -> Tensor:
    """Which tokens have no gradient because the clipped term is the larger loss: bool."""
    return -advantages * ratios < -advantages * ratios.clamp(1.0 - below, 1.0 + above)


def dual_clipped(losses: Tensor, advantages: Tensor, bound: float) -> Tensor:
    """Bound the loss of a token with negative advantage by `bound * |A|` (arXiv:1912.09729, equation 5)."""
    return losses.minimum(bound * advantages.abs()).where(advantages < 0, losses)


def divergence(logp: Tensor, reference: Tensor) -> Tensor:
    """Low-variance estimate of KL(reference ‖ current) from tokens that the reference sampled: e^d - 1 - d, never negative."""
    difference = (logp - reference).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return difference.exp() - 1.0 - difference


# ---------------------------------------------------------------- reductions


def call_shares(reduction: Reduction, tokens: Tensor, samples: Tensor, length: int) -> Tensor:
    """What each trained token of a call counts in the loss of the whole step.

    The shares are fixed before the step is cut into micro-batches, and losses are summed with them; so the loss and
    its gradient do not depend on how the step is cut, nor on how an episode was cut into rows.

    Args:
        reduction: `token`: mean over all trained tokens. `sequence`: mean over the trained tokens of each sample (an episode,
            whatever rows it became), then over the samples that have any. `constant`: sum over each sample divided by
            `length`, then mean over all samples (arXiv:2503.20783), so that long answers are not discounted, and a sample
            that is masked as a whole does not make the others count more.
        tokens: float64 `[calls]`, trained tokens of each call of the update.
        samples: int64 `[calls]`, the sample of each call.
        length: the divisor of `constant`.

    Returns:
        `[calls]`; 0 for calls without trained tokens.
    """
    trained = (tokens > 0).to(tokens.dtype)
    if reduction == "token":
        return trained / tokens.sum().clamp(min=1.0)
    of_sample = sum_by(tokens, samples)
    if reduction == "sequence":
        return trained / (of_sample[samples].clamp(min=1.0) * (of_sample > 0).to(tokens.dtype).sum().clamp(min=1.0))
    return trained / (length * int((sum_by(tokens.new_ones(len(tokens)), samples) > 0).sum()))
