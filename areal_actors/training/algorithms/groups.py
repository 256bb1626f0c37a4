"""Group baselines and normalization of rewards, and statistics of samples and tokens.

A *sample* counts once in the statistics of a group: an episode, however many calls and sequences it has (with
`task.baseline_over = "calls"` each call). The value of a sample is the mean of R over its calls; means and standard
deviations are over the values of samples, and the advantage of a call is its own R relative to them.

Groups may have any size: statistics are over the samples present, not over the configured size. The calls of a group of
one sample have an advantage of exactly 0, and so has a call whose R equals the value that all samples of its group
share. If advantages are divided by a standard deviation and all values of a group (or batch) are equal, all of its
calls have exactly 0, even if their R differ within the samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_actors.core.scalars import ABSOLUTE, RELATIVE

if TYPE_CHECKING:
    from torch import Tensor

STD_FLOOR = 1e-6
"""Added to a standard deviation before division."""


def sum_by(values: Tensor, index: Tensor, size: int | None = None) -> Tensor:
    """Returns the sum of the values that share an index: `[n]`, `[n]` int64 → `[size]`, or up to the largest index."""
    if size is None:
        size = int(index.max()) + 1 if len(index) else 0
    return values.new_zeros(size).index_add(0, index, values)


def mean_by(values: Tensor, index: Tensor, size: int | None = None) -> Tensor:
    """Returns the mean of the values that share an index, 0 if there are none.

    `[n]`, `[n]` int64 → `[size]`, as `sum_by`.
    """
    return sum_by(values, index, size) / sum_by(values.new_ones(len(values)), index, size).clamp(min=1.0)


def exact_mean_by(values: Tensor, index: Tensor, size: int | None = None) -> Tensor:
    """Returns `mean_by`, but exact for equal values and independent of their order: float64 `[n]` → `[size]`.

    The mean of three times 0.1 is not 0.1 in floating point; rounding errors of equal rewards would count as signal.
    """
    if size is None:
        size = int(index.max()) + 1 if len(index) else 0
    order = values.argsort()
    values, index = values[order], index[order]
    least = values.new_zeros(size).scatter_reduce(0, index, values, "amin", include_self=False)
    return least + mean_by(values - least[index], index, size)


def last_by(index: Tensor) -> Tensor:
    """Returns the position of the last entry of each index.

    int64 `[n]` → int64 `[size]`; every index up to the largest occurs.
    """
    size = int(index.max()) + 1 if len(index) else 0
    positions = index.new_ones(len(index)).cumsum(0) - 1
    return index.new_zeros(size).scatter_reduce(0, index, positions, "amax", include_self=False)


def sample_values(rewards: Tensor, samples: Tensor, groups: Tensor) -> Tensor:
    """Returns sample values, means of R over calls.

    float64 `[calls]`, int64 `[calls]`, int64 `[samples]` → `[samples]`.
    """
    return exact_mean_by(rewards, samples, len(groups))


def has_signal(values: Tensor, groups: Tensor) -> Tensor:
    """Returns True for samples of groups whose values differ by more than rounding.

    float64 `[n]`, int64 `[n]` → bool `[n]`.
    Compares values instead of a variance: the variance of three times 0.1 is not exactly 0 in floating point.
    """
    empty = values.new_zeros(int(groups.max()) + 1)
    highest = empty.scatter_reduce(0, groups, values, "amax", include_self=False)
    lowest = empty.scatter_reduce(0, groups, values, "amin", include_self=False)
    rounding = RELATIVE * highest.abs().maximum(lowest.abs()) + ABSOLUTE
    return (highest - lowest > rounding)[groups]


def group_std(values: Tensor, groups: Tensor) -> Tensor:
    """Returns the standard deviation (n - 1) of the values of each sample's group: float64 `[samples]`."""
    deviations = values - exact_mean_by(values, groups)[groups]
    return (sum_by(deviations.square(), groups) / (_group_sizes(groups) - 1).clamp(min=1.0)).sqrt()[groups]


def group_centered(rewards: Tensor, samples: Tensor, groups: Tensor) -> Tensor:
    """Returns R of each call minus the mean value of its group's samples: as `sample_values` → float64 `[calls]`."""
    values = sample_values(rewards, samples, groups)
    return _subtract_baselines(rewards, exact_mean_by(values, groups)[groups], samples, groups)


def group_normalized(rewards: Tensor, samples: Tensor, groups: Tensor) -> Tensor:
    """Returns `group_centered` divided by the standard deviation (n - 1) of the group's values: float64 `[calls]`.

    The advantage of GRPO (arXiv:2402.03300, section 4.1.2).
    """
    values = sample_values(rewards, samples, groups)
    unit = group_std(values, groups) + STD_FLOOR
    relative = group_centered(rewards, samples, groups) / unit[samples]
    return relative.masked_fill(~has_signal(values, groups)[samples], 0.0)


def batch_normalized(rewards: Tensor, samples: Tensor, groups: Tensor, *, around_group: bool) -> Tensor:
    """Returns `group_centered` divided by the standard deviation (n - 1) of all values of the step: float64 `[calls]`.

    Args:
        rewards: R of each call, float64 `[calls]`.
        samples: int64 `[calls]`.
        groups: int64 `[samples]`.
        around_group: True takes deviations from the group means instead of the mean of the step.
    """
    values = sample_values(rewards, samples, groups)
    around = groups if around_group else groups * 0
    deviations = values - exact_mean_by(values, around)[around]
    if not bool((deviations != 0).any()):
        return rewards.new_zeros(len(rewards))
    unit = (deviations.square().sum() / max(len(values) - 1, 1)).sqrt() + STD_FLOOR
    return group_centered(rewards, samples, groups) / unit


def leave_one_out(rewards: Tensor, samples: Tensor, groups: Tensor) -> Tensor:
    """Returns R of each call minus the mean value of the other samples of its group.

    As `sample_values` → float64 `[calls]`.
    With n samples of mean m, the mean of the samples other than one of value v is m + (m - v) / (n - 1).
    """
    values = sample_values(rewards, samples, groups)
    means = exact_mean_by(values, groups)[groups]
    other_count = (_group_sizes(groups)[groups] - 1).clamp(min=1.0)
    return _subtract_baselines(rewards, means + (means - values) / other_count, samples, groups)


def _group_sizes(groups: Tensor) -> Tensor:
    """Returns the number of samples of each group: float64 `[groups]`."""
    return sum_by(groups.new_ones(len(groups)).double(), groups)


def _subtract_baselines(rewards: Tensor, baselines: Tensor, samples: Tensor, groups: Tensor) -> Tensor:
    """Returns R of each call minus the baseline `[samples]` of its sample; 0 if the sample is alone in its group."""
    alone = (_group_sizes(groups) <= 1)[groups]
    return (rewards - baselines[samples]).masked_fill(alone[samples], 0.0)


def std_of(values: Tensor) -> Tensor:
    """Returns the standard deviation (n - 1) of values `[n]`; 0 for a single value."""
    return ((values - values.mean()).square().sum() / max(len(values) - 1, 1)).sqrt()


def whiten(values: Tensor, samples: Tensor) -> Tensor:
    """Returns values minus their mean, divided by their standard deviation.

    float64 `[tokens]`, samples int64 `[tokens]` → `[tokens]`.
    Moments are means over samples of means over the tokens of a sample, the variance with n - 1 samples: if all tokens
    of a sample have the same value, they are the mean and the standard deviation over samples. Values that are all
    equal give 0.
    """
    if not bool((values != values[:1]).any()):
        return values.new_zeros(len(values))
    tokens = sum_by(values.new_ones(len(values)), samples)
    present = float((tokens > 0).sum())
    weights = 1.0 / (tokens[samples] * present)
    deviations = values - (weights * values).sum()
    variance = (weights * deviations.square()).sum() * present / max(present - 1.0, 1.0)
    return deviations / (variance.sqrt() + STD_FLOOR)
