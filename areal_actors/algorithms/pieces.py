"""The pieces that policy losses are made of: group statistics, ratios, surrogates, corrections and reductions.

Everything is written in methods of tensors, so that a process that only reads the recipe never loads torch. A column
"per token" has one entry for each trained token, and nothing else: there are no masks to forget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Reduction = Literal["token", "sequence", "constant"]
"""How token losses become the loss of a step; see `row_shares`."""

LOG_RATIO_LIMIT = 20.0
"""Beyond e^20 a ratio says nothing but "far away"; divergences are computed within."""

STD_FLOOR = 1e-6
"""Added to a group's standard deviation before dividing by it."""


# ---------------------------------------------------------------- groups


def sum_by(values: Tensor, index: Tensor) -> Tensor:
    """Sum of the values that share an index: `[n]`, `[n]` int64 → `[largest index + 1]`."""
    return values.new_zeros(int(index.max()) + 1).index_add(0, index, values)


def mean_by(values: Tensor, index: Tensor) -> Tensor:
    """Mean of the values that share an index, 0 where there are none: `[n]`, `[n]` int64 → `[largest index + 1]`."""
    return sum_by(values, index) / sum_by(values.new_ones(len(values)), index).clamp(min=1.0)


def has_signal(rewards: Tensor, groups: Tensor) -> Tensor:
    """Which rows belong to a group whose rewards differ: `[rows]` → bool `[rows]`.

    Told by comparing, not by a variance: that of three times 0.1 is not exactly 0 in floating point.
    """
    empty = rewards.new_zeros(int(groups.max()) + 1)
    highest = empty.scatter_reduce(0, groups, rewards, "amax", include_self=False)
    lowest = empty.scatter_reduce(0, groups, rewards, "amin", include_self=False)
    return (highest > lowest)[groups]


def group_normalized(rewards: Tensor, groups: Tensor, *, scale: bool = True) -> Tensor:
    """Reward minus the group's mean, divided by the group's standard deviation (n - 1) if `scale`.

    Groups may be of any size: each is normalised over the members it has. A group of one, and a group whose rewards
    are all equal, get exactly 0.

    Args:
        rewards: float64 `[rows]`.
        groups: int64 `[rows]`, the group of each row.
        scale: whether to divide by the standard deviation.

    Returns:
        float64 `[rows]`.
    """
    centered = rewards - mean_by(rewards, groups)[groups]
    if scale:
        members = sum_by(rewards.new_ones(len(rewards)), groups)
        std = (sum_by(centered.square(), groups) / (members - 1).clamp(min=1.0)).sqrt()
        centered = centered / (std[groups] + STD_FLOOR)
    return centered.masked_fill(~has_signal(rewards, groups), 0.0)


# ---------------------------------------------------------------- ratios and surrogates, per token


def ratio(logp: Tensor, reference: Tensor) -> Tensor:
    """How much likelier a token is now than under the reference: exp(logp - reference)."""
    return (logp - reference).exp()


def clipped(ratios: Tensor, advantages: Tensor, below: float, above: float) -> Tensor:
    """PPO's clipped surrogate as a loss: max(-A u, -A clip(u, 1 - below, 1 + above)) (arXiv:1707.06347, equation 7)."""
    return (-advantages * ratios).maximum(-advantages * ratios.clamp(1.0 - below, 1.0 + above))


def is_clipped(ratios: Tensor, advantages: Tensor, below: float, above: float) -> Tensor:
    """Which tokens have no gradient because the clipped term is the larger loss: bool."""
    return -advantages * ratios < -advantages * ratios.clamp(1.0 - below, 1.0 + above)


def dual_clipped(losses: Tensor, advantages: Tensor, bound: float) -> Tensor:
    """Bound the loss of a token with negative advantage by `bound * |A|` (arXiv:1912.09729, equation 5)."""
    return losses.minimum(bound * advantages.abs()).where(advantages < 0, losses)


def behaviour_weight(proximal: Tensor, behaviour: Tensor, cap: float | None) -> Tensor:
    """The weight exp(proximal - behaviour) that corrects for tokens sampled by older weights, at most `cap`; no gradient."""
    weight = ratio(proximal, behaviour).detach()
    return weight if cap is None else weight.clamp(max=cap)


def divergence(logp: Tensor, reference: Tensor) -> Tensor:
    """Low-variance estimate of KL(reference ‖ current) from tokens that the reference sampled: e^d - 1 - d, never negative."""
    difference = (logp - reference).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return difference.exp() - 1.0 - difference


# ---------------------------------------------------------------- reductions


def row_shares(reduction: Reduction, tokens: Tensor, length: int) -> Tensor:
    """What each trained token of a row counts in the loss of the whole step.

    The shares are fixed before the step is cut into micro-batches, and losses are summed with them; so the loss and
    its gradient do not depend on how the step is cut.

    Args:
        reduction: `token`: mean over all trained tokens. `sequence`: mean within each row, then over the rows that
            have trained tokens. `constant`: sum within each row divided by `length`, then mean over those rows
            (arXiv:2503.20783), so that long answers are not discounted.
        tokens: `[rows]`, trained tokens of each row.
        length: the divisor of `constant`.

    Returns:
        `[rows]`; 0 for rows without trained tokens.
    """
    trained = (tokens > 0).to(tokens.dtype)
    rows = trained.sum().clamp(min=1.0)
    if reduction == "token":
        return trained / tokens.sum().clamp(min=1.0)
    if reduction == "sequence":
        return trained / (tokens.clamp(min=1.0) * rows)
    return trained / (length * rows)
