"""What losses over preference pairs share: a pair is a group of two rows, the preferred one with reward 1, the other with 0.

A loss of a pair is a loss of each of its tokens: with the shares of `call_shares("sequence", ...)` the losses of a row's
tokens count as one row (a sample of its own), and the rows as their mean, which is the mean over pairs. The rows of a pair lie in
one micro-batch (`Algorithm.whole_groups`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_actors.algorithms.base import Advantages, Batch, StepTokens
from areal_actors.algorithms.groups import sample_values, sum_by
from areal_actors.errors import EngineError

if TYPE_CHECKING:
    from torch import Tensor

PAIR = 2
"""Rows of a group."""
CHOSEN = 0.5
"""The preferred row's reward is above it, the other's below."""


def group_size_problems(group_size: int) -> Iterator[tuple[tuple[str, ...], str]]:
    """A pair has two members, whatever a recipe says."""
    if group_size != PAIR:
        yield ("group_size",), f"found {group_size}, but a pair is a preferred answer and another; leave it out"


def row_weights(step: StepTokens) -> Advantages:
    """Weights with which a mean over the step's tokens is one over its rows: float32 `[tokens]`, at 1 on average.

    Losses over pairs have no advantages; what they measure of a pair they multiply with these, since measures are reported
    as means over tokens.

    Raises:
        EngineError: a pair has not one preferred and one other row with trained tokens.
    """
    samples = step.samples[step.calls]
    tokens = sum_by(step.rewards.new_ones(len(samples)), samples, len(step.groups))
    is_chosen = sample_values(step.rewards, step.samples, step.groups) > CHOSEN
    for name, side in (("preferred", is_chosen), ("rejected", ~is_chosen)):
        found = sum_by((side & (tokens > 0)).to(tokens.dtype), step.groups)
        for pair in sorted(set(step.groups.tolist())):
            if found[pair] != 1:
                raise EngineError(
                    f"preference pair {pair} of the batch has {int(found[pair])} {name} answers with a trained token, expected 1: "
                    "a side that is missing or masked leaves nothing to compare; leave the pair out of the data"
                )
    return Advantages(tokens=(len(samples) / (len(tokens) * tokens[samples])).to(step.behaviour.dtype))


def both(column: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Sums over the tokens of the preferred row and of the other, at every token of the pair: `[tokens]` → float64 `[tokens]` twice."""
    is_chosen = batch.rewards > CHOSEN
    column = column.double()
    chosen = sum_by(column.where(is_chosen, column.new_zeros(())), batch.groups)
    rejected = sum_by(column.where(~is_chosen, column.new_zeros(())), batch.groups)
    return chosen[batch.groups], rejected[batch.groups]


def preferred(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Which pairs are told apart as they should be: 1, 0, or one half where the two are worth the same; float64 `[n]`."""
    return 0.5 + 0.5 * (chosen - rejected).sign()


def unlikelihood(difference: Tensor) -> Tensor:
    """-log(sigmoid(x)), for x of any size and with its gradient at 0: float64 `[n]` → `[n]`."""
    return difference.new_zeros(()).logaddexp(-difference)
