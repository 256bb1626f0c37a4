"""What rewards are worth within their group, and statistics of rows and tokens.

Groups may be of any size: each is compared over the members it has, never over a size it was meant to have. A group of
one, and a group whose rewards are all equal, teach nothing: their advantages are exactly 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

STD_FLOOR = 1e-6
"""Added to a standard deviation before dividing by it."""


def sum_by(values: Tensor, index: Tensor, size: int | None = None) -> Tensor:
    """Sum of the values that share an index: `[n]`, `[n]` int64 → `[size]`, or up to the largest index."""
    if size is None:
        size = int(index.max()) + 1 if len(index) else 0
    return values.new_zeros(size).index_add(0, index, values)


def mean_by(values: Tensor, index: Tensor, size: int | None = None) -> Tensor:
    """Mean of the values that share an index, 0 where there are none: `[n]`, `[n]` int64 → `[size]`, as `sum_by`."""
    return sum_by(values, index, size) / sum_by(values.new_ones(len(values)), index, size).clamp(min=1.0)


def has_signal(rewards: Tensor, groups: Tensor) -> Tensor:
    """Which rows belong to a group whose rewards differ: `[rows]` → bool `[rows]`.

    Told by comparing, not by a variance: that of three times 0.1 is not exactly 0 in floating point.
    """
    empty = rewards.new_zeros(int(groups.max()) + 1)
    highest = empty.scatter_reduce(0, groups, rewards, "amax", include_self=False)
    lowest = empty.scatter_reduce(0, groups, rewards, "amin", include_self=False)
    return (highest > lowest)[groups]


def group_centered(rewards: Tensor, groups: Tensor) -> Tensor:
    """Reward minus the group's mean: float64 `[rows]`, int64 `[rows]` → float64 `[rows]`."""
    centered = rewards - mean_by(rewards, groups)[groups]
    return centered.masked_fill(~has_signal(rewards, groups), 0.0)


def group_normalized(rewards: Tensor, groups: Tensor) -> Tensor:
    """Reward minus the group's mean, divided by the group's standard deviation (n - 1): float64 `[rows]`."""
    centered = group_centered(rewards, groups)
    members = sum_by(rewards.new_ones(len(rewards)), groups)
    std = (sum_by(centered.square(), groups) / (members - 1).clamp(min=1.0)).sqrt()
    return centered / (std[groups] + STD_FLOOR)


def leave_one_out(rewards: Tensor, groups: Tensor) -> Tensor:
    """Reward minus the mean of the others of its group: float64 `[rows]`.

    With n members that is n / (n - 1) times the distance from the mean of all.
    """
    members = sum_by(rewards.new_ones(len(rewards)), groups)[groups]
    return group_centered(rewards, groups) * members / (members - 1).clamp(min=1.0)


def std_of(values: Tensor, center: Tensor | float | None = None) -> Tensor:
    """Standard deviation (n - 1) of all values `[n]` around their mean, or around `center`; a single value has 0."""
    apart = values - (values.mean() if center is None else center)
    return (apart.square().sum() / max(len(values) - 1, 1)).sqrt()


def whitened(values: Tensor) -> Tensor:
    """Values minus their mean, divided by their standard deviation: float64 `[n]`; values that are all equal get 0."""
    if not bool((values != values[:1]).any()):
        return values.new_zeros(len(values))
    return (values - values.mean()) / (std_of(values) + STD_FLOOR)
