"""Several named rewards: each normalized on its own (GDPO), and the share of each in the advantage.

Group reward-decoupled normalization policy optimization (GDPO; arXiv:2601.05242, section 3.1). Normalizing the sum of
rewards gives episodes with different rewards one advantage, and hides a reward with small differences behind one with
large ones. So for episode j of group i, and rewards k with weights w_k (the paper's equations 4 to 7):

    A_k(i, j) = (r_k(i, j) - mean of r_k in group i) / std of r_k in group i
    A(i, j) = Σ_k w_k A_k(i, j)
    Â(i, j) = (A(i, j) - mean of A in the batch) / (std of A in the batch + ε)

Here a call takes the place of an episode where calls have rewards of their own (`task.turn_discount`), and the
algorithm's own comparison that of the first line. What the reward of a call has beyond the named ones, such as rewards
that the agent set itself, is one more reward of weight 1, `unnamed`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from areal_actors.core.errors import UntrainableBatch
from areal_actors.core.scalars import ABSOLUTE, RELATIVE
from areal_actors.training.algorithms.base import NamedColumn, StepTokens
from areal_actors.training.algorithms.groups import group_centered, has_signal, mean_by, sample_values, sum_by

if TYPE_CHECKING:
    from torch import Tensor

UNNAMED = "unnamed"
SHARE = "reward_share"
"""Beginning of the name of a metric, before the name of the reward."""
Compare = Callable[["Tensor", "Tensor", "Tensor"], "Tensor"]
"""`PolicyGradient.compare`."""


def compare_separately(step: StepTokens, compare: Compare) -> tuple[Tensor, dict[str, float]]:
    """Returns the weighted sum of the advantages of each named reward, float64 `[calls]`, and metrics of the rewards.

    Raises:
        UntrainableBatch: an episode lacks one of the rewards, or none has a name.
    """
    if not step.named_rewards:
        raise UntrainableBatch(
            'algorithm.reward_normalization = "separate", but episodes have no named rewards: name them in'
            " task.reward_weights"
        )
    for column in step.named_rewards:
        if bool((column.rewards != column.rewards).any()):  # NaN
            raise UntrainableBatch(
                f"an episode has no reward named `{column.name}`: return a mapping with this name beside `reward`, or"
                " name another in task.reward_weights"
            )
    columns = _with_unnamed(step.named_rewards, step.rewards)
    parts = {column.name: column.weight * compare(column.rewards, step.samples, step.groups) for column in columns}
    total = _sum(list(parts.values()))
    values = {name: sample_values(part, step.samples, step.groups) for name, part in parts.items()}
    advantages = _sum(list(values.values()))
    shares = {name: float((part * advantages).sum()) for name, part in values.items()}
    return total, {**_spreads(step), **_shares(shares)}


def summed_reward_metrics(step: StepTokens, rewards: Tensor, compared: Tensor, scale: float) -> dict[str, float]:
    """Returns metrics of the named rewards of a step whose sum is compared; empty without named rewards.

    Args:
        step: of the named rewards.
        rewards: float64 `[calls]`, as compared.
        compared: float64 `[calls]`, their advantages.
        scale: factor of rewards before they are compared.
    """
    if not step.named_rewards or any(bool((column.rewards != column.rewards).any()) for column in step.named_rewards):
        return {}

    def subtract_group_mean(column: Tensor) -> Tensor:
        return sample_values(group_centered(column, step.samples, step.groups), step.samples, step.groups)

    advantages, whole = sample_values(compared, step.samples, step.groups), subtract_group_mean(rewards)
    # A part's share of an advantage is that of its deviation from the group's mean in the deviation of the whole
    unit = advantages.square() / whole.masked_fill(whole == 0, math.inf)
    scaled = [NamedColumn(column.name, scale * column.weight, column.rewards) for column in step.named_rewards]
    shares = {
        column.name: float((column.weight * subtract_group_mean(column.rewards) * unit).sum())
        for column in _with_unnamed(scaled, rewards)
    }
    return {**_spreads(step), **_shares(shares)}


def _with_unnamed(columns: Sequence[NamedColumn], rewards: Tensor) -> list[NamedColumn]:
    """Returns the columns, and what the rewards have beyond their sum, if it is more than rounding."""
    weighted = [column.weight * column.rewards for column in columns]
    size, rest = _sum([rewards.abs(), *(column.abs() for column in weighted)]), rewards - _sum(weighted)
    rest = rest.masked_fill(rest.abs() <= RELATIVE * size + ABSOLUTE, 0.0)
    return [*columns, NamedColumn(UNNAMED, 1.0, rest)] if bool((rest != 0).any()) else list(columns)


def _sum(columns: Sequence[Tensor]) -> Tensor:
    total = columns[0]
    for column in columns[1:]:
        total = total + column
    return total


def _spreads(step: StepTokens) -> dict[str, float]:
    """Returns the deviation of each reward over samples, and the share of groups in which it is constant."""
    metrics: dict[str, float] = {}
    present = float((sum_by(step.groups.new_ones(len(step.groups)), step.groups) > 0).sum())
    for column in step.named_rewards:
        values = sample_values(column.rewards, step.samples, step.groups)
        varied = float(mean_by(has_signal(values, step.groups).to(values.dtype), step.groups).sum())
        metrics[f"reward_std/{column.name}"] = math.sqrt(float((values - values.mean()).square().mean()))
        metrics[f"reward_constant/{column.name}"] = 1.0 - varied / present
    return metrics


def _shares(covariances: dict[str, float]) -> dict[str, float]:
    """Returns the share of each reward in the variance of the advantages: their covariance with its part of them.

    Nothing if all advantages are 0.
    """
    total = sum(covariances.values())
    return {f"{SHARE}/{name}": covariance / total for name, covariance in covariances.items()} if total else {}
