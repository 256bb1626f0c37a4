"""Common code of losses over preference pairs.

A pair is a group of two sequences, chosen (reward 1) and rejected (reward 0).
Every token of a pair has the loss of the pair: with the weights of `call_shares("seq_mean", ...)` the tokens of a
sequence count as one sequence (a sample of its own), and sequences are averaged, which is the mean over pairs. The
sequences of a pair are in one micro-batch (`Algorithm.whole_groups`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from areal_actors.core.config import PositiveInt
from areal_actors.core.errors import EngineError
from areal_actors.training.algorithms.base import (
    Advantages,
    Algorithm,
    Batch,
    ExampleKind,
    Problem,
    StepTokens,
    TokenLosses,
)
from areal_actors.training.algorithms.groups import sample_values, sum_by
from areal_actors.training.algorithms.pieces import call_shares

if TYPE_CHECKING:
    from torch import Tensor

PAIR = 2
"""Sequences of a group."""
CHOSEN = 0.5
"""Threshold between the rewards of rejected and chosen sequences."""


class PairAlgorithm(Algorithm):
    """Base of algorithms that learn from preference pairs."""

    learns_from: ClassVar[Literal["episodes", "examples"]] = "examples"
    example_kind: ClassVar[ExampleKind] = "pairs"
    whole_groups: ClassVar[bool] = True

    group_size: PositiveInt = PAIR
    """The two answers, or conversations, of a pair."""

    def problems(self) -> Iterator[Problem]:
        """Yields the problem of a group size that is not a pair."""
        if self.group_size != PAIR:
            yield ("group_size",), f"found {self.group_size}, but a preference pair has {PAIR} answers; leave it out"

    def advantages(self, step: StepTokens) -> Advantages:
        """Returns weights that turn measures into means over pairs."""
        return sequence_weights(step)

    def shares(self, tokens: Tensor, samples: Tensor) -> Tensor:
        """Returns the weights of a mean over pairs."""
        return call_shares("seq_mean", tokens, samples, length=1)


def sequence_weights(step: StepTokens) -> Advantages:
    """Returns weights that turn a mean over tokens into a mean over sequences: float32 `[tokens]`, 1 on average.

    Losses over pairs have no advantages; they multiply their measures by these weights, since measures are reported as
    means over tokens.

    Raises:
        EngineError: a pair does not have exactly one chosen and one rejected sequence with trained tokens.
    """
    samples = step.samples[step.calls]
    tokens = sum_by(step.rewards.new_ones(len(samples)), samples, len(step.groups))
    is_chosen = sample_values(step.rewards, step.samples, step.groups) > CHOSEN
    for name, side in (("preferred", is_chosen), ("rejected", ~is_chosen)):
        counts = sum_by((side & (tokens > 0)).to(tokens.dtype), step.groups)
        for pair in sorted(set(step.groups.tolist())):
            if counts[pair] != 1:
                raise EngineError(
                    f"preference pair {pair} of the batch has {int(counts[pair])} {name} answers with a trained token,"
                    " expected 1: one side is missing or masked; remove the pair from the data"
                )
    return Advantages(tokens=(len(samples) / (len(tokens) * tokens[samples])).to(step.behaviour.dtype))


def pair_sums(column: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Returns sums over the chosen and over the rejected sequence, at every token of the pair.

    `[tokens]` → two float64 `[tokens]`.
    """
    is_chosen = batch.rewards > CHOSEN
    column = column.double()
    chosen = sum_by(column.where(is_chosen, column.new_zeros(())), batch.groups)
    rejected = sum_by(column.where(~is_chosen, column.new_zeros(())), batch.groups)
    return chosen[batch.groups], rejected[batch.groups]


def pair_losses(
    losses: Tensor, chosen: Tensor, rejected: Tensor, batch: Batch, name: str, scale: float = 1.0
) -> TokenLosses:
    """Returns token losses with measures of the pairs, which are reported as means over pairs.

    Args:
        losses: loss of the pair at every token, `[tokens]` with gradient.
        chosen: score of the chosen sequence, at every token of the pair, `[tokens]`.
        rejected: score of the rejected sequence.
        batch: the tokens, with the weights of `sequence_weights`.
        name: of a score, in the names of measures.
        scale: factor of scores in measures.
    """
    measures = {
        "accuracy": 0.5 + 0.5 * (chosen - rejected).sign(),  # 0.5 for ties
        "margin": scale * (chosen - rejected),
        f"chosen_{name}": scale * chosen,
        f"rejected_{name}": scale * rejected,
    }
    return TokenLosses(
        losses=losses, measures={key: column.detach() * batch.advantages for key, column in measures.items()}
    )


def negative_log_sigmoid(difference: Tensor) -> Tensor:
    """Returns -log(sigmoid(x)), stable for large |x|: float64 `[n]` → `[n]`."""
    return difference.new_zeros(()).logaddexp(-difference)
