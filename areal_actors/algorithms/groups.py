"""Baselines and units of rewards within their group, and statistics of samples and tokens.

A *sample* is what the statistics of a group count: an episode, however many calls and rows it became (with
`task.baseline_over = "calls"` each call). The value of a sample is the mean of R over its calls; means and standard
deviations are over the values of samples, and the advantage of a call is its own R against them.

Groups may be of any size: each is compared over the samples it has, never over a size it was meant to have. The calls of a
group of one sample have an advantage of exactly 0, and so has a call whose R equals the value that all samples of its
group share. Where advantages are divided by a standard deviation, a group (or batch) whose values are all equal has no
unit, and all of its calls have exactly 0, even if their R differ within the samples.
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


def exact_mean_by(values: Tensor, index: Tensor, size: int | None = None) -> Tensor:
    """`mean_by` that is exact for equal values and the same for any order of the values: float64 `[n]` → `[size]`.

    The mean of three times 0.1 is not 0.1 in floating point; a difference of rounding between equal rewards would count as signal.
    """
    if size is None:
        size = int(index.max()) + 1 if len(index) else 0
    order = values.argsort()
    values, index = values[order], index[order]
    least = values.new_zeros(size).scatter_reduce(0, index, values, "amin", include_self=False)
    return least + mean_by(values - least[index], index, size)


def last_by(index: Tensor) -> Tensor:
    """Position of the last entry of each index: int64 `[n]` → int64 `[size]`; every index up to the largest occurs."""
    size = int(index.max()) + 1 if len(index) else 0
    positions = index.new_ones(len(index)).cumsum(0) - 1
    return index.new_zeros(size).scatter_reduce(0, index, positions, "amax", include_self=False)


def sample_values(rewards: Tensor, samples: Tensor, groups: Tensor) -> Tensor:
    """Value of each sample, the mean of R over its calls: float64 `[calls]`, int64 `[calls]`, int64 `[samples]` → `[samples]`."""
    return exact_mean_by(rewards, samples, len(groups))


def has_signal(values: Tensor, groups: Tensor) -> Tensor:
    """Samples of a group whose values differ: float64 `[samples]`, int64 `[samples]` → bool `[samples]`.

    Decided by comparison, not by a variance: that of three times 0.1 is not exactly 0 in floating point.
    """
    empty = values.new_zeros(int(groups.max()) + 1)
    highest = empty.scatter_reduce(0, groups, values, "amax", include_self=False)
    lowest = empty.scatter_reduce(0, groups, values, "amin", include_self=False)
    return (highest > lowest)[groups]


def group_std(values: Tensor, groups: Tensor) -> Tensor:
    """Standard deviation (n - 1) of the values of each sample's group: float64 `[samples]`."""
    apart = values - exact_mean_by(values, groups)[groups]
    return (sum_by(apart.square(), groups) / (_members(groups) - 1).clamp(min=1.0)).sqrt()[groups]


def group_centered(rewards: Tensor, samples: Tensor, groups: Tensor) -> Tensor:
    """R of each call minus the mean value of its group's samples: as `sample_values` → float64 `[calls]`."""
    values = sample_values(rewards, samples, groups)
    return _against(rewards, exact_mean_by(values, groups)[groups], samples, groups)


def group_normalized(rewards: Tensor, samples: Tensor, groups: Tensor) -> Tensor:
    """`group_centered` divided by the standard deviation (n - 1) of the group's values: float64 `[calls]`."""
    values = sample_values(rewards, samples, groups)
    unit = group_std(values, groups) + STD_FLOOR
    relative = group_centered(rewards, samples, groups) / unit[samples]
    return relative.masked_fill(~has_signal(values, groups)[samples], 0.0)


def batch_normalized(rewards: Tensor, samples: Tensor, groups: Tensor, *, around_group: bool) -> Tensor:
    """`group_centered` divided by the standard deviation (n - 1) of all values of the step: float64 `[calls]`.

    Args:
        rewards: R of each call, float64 `[calls]`.
        samples: int64 `[calls]`.
        groups: int64 `[samples]`.
        around_group: the deviations are those from the means of the groups, not from the mean of the step.
    """
    values = sample_values(rewards, samples, groups)
    around = groups if around_group else groups * 0
    apart = values - exact_mean_by(values, around)[around]
    if not bool((apart != 0).any()):
        return rewards.new_zeros(len(rewards))
    unit = (apart.square().sum() / max(len(values) - 1, 1)).sqrt() + STD_FLOOR
    return group_centered(rewards, samples, groups) / unit


def leave_one_out(rewards: Tensor, samples: Tensor, groups: Tensor) -> Tensor:
    """R of each call minus the mean value of the other samples of its group: as `sample_values` → float64 `[calls]`.

    With n samples and their mean m, the mean of those other than the one with value v is m + (m - v) / (n - 1).
    """
    values = sample_values(rewards, samples, groups)
    means = exact_mean_by(values, groups)[groups]
    others = (_members(groups)[groups] - 1).clamp(min=1.0)
    return _against(rewards, means + (means - values) / others, samples, groups)


def _members(groups: Tensor) -> Tensor:
    """Number of samples of each group: float64 `[groups]`."""
    return sum_by(groups.new_ones(len(groups)).double(), groups)


def _against(rewards: Tensor, baselines: Tensor, samples: Tensor, groups: Tensor) -> Tensor:
    """R of each call minus the baseline `[samples]` of its sample; 0 where the sample is alone in its group."""
    alone = (_members(groups) <= 1)[groups]
    return (rewards - baselines[samples]).masked_fill(alone[samples], 0.0)


def std_of(values: Tensor) -> Tensor:
    """Standard deviation (n - 1) of all values `[n]` around their mean; a single value has 0."""
    return ((values - values.mean()).square().sum() / max(len(values) - 1, 1)).sqrt()


def whitened(values: Tensor, samples: Tensor) -> Tensor:
    """Values minus their mean, divided by their standard deviation: float64 `[tokens]`, samples int64 `[tokens]` → `[tokens]`.

    Moments are means over samples of means over the tokens of a sample, the variance with n - 1 samples: where all tokens of
    a sample have one value they are the mean and the standard deviation of these. Values that are all equal get 0.
    """
    if not bool((values != values[:1]).any()):
        return values.new_zeros(len(values))
    tokens = sum_by(values.new_ones(len(values)), samples)
    present = float((tokens > 0).sum())
    weights = 1.0 / (tokens[samples] * present)
    apart = values - (weights * values).sum()
    variance = (weights * apart.square()).sum() * present / max(present - 1.0, 1.0)
    return apart / (variance.sqrt() + STD_FLOOR)
