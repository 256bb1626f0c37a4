"""Contract of every algorithm: see `Algorithm`.

A case takes an algorithm and random numbers, and makes steps of random sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor

from areal_actors.core.values import TrainingSequence
from areal_actors.training.algorithms.base import Advantages, Algorithm, Batch, StepTokens
from areal_actors.training.packing.tensors import make_micro_batches
from areal_actors.training.step import loss_batch
from areal_actors.training.step_data import step_tokens

WEIGHT_VERSION = 2
GROUPS = 3
PROMPT = 4
LONGEST = 9
STEPS = 20
VOCABULARY = 50
REWARDS: Sequence[Sequence[float]] = ((0.0, 1.0), (1.0,), (0.0,), (-3.5, 0.25, 1e6), (1e-9, 0.0), (-1.0, -1.0 + 1e-12))
"""Values from which the rewards of a step are drawn: usual ones, all alike, far apart and close together."""


class AlgorithmHarness(NamedTuple):
    algorithm: Algorithm
    draw: np.random.Generator

    def sequences(self, values: Sequence[float]) -> list[TrainingSequence]:
        """Groups of random sequences with rewards of these values.

        The tokens are of several versions, and some are masked.
        """
        return [
            self._sequence(group, float(self.draw.choice(values)))
            for group in range(GROUPS)
            for _ in range(self.algorithm.group_size)
        ]

    def _sequence(self, group: int, reward: float) -> TrainingSequence:
        length = int(self.draw.integers(1, LONGEST))
        sampled = np.arange(PROMPT + length) >= PROMPT
        masked = self.draw.random(len(sampled)) < 0.1
        masked[-1] = False
        versions = np.sort(self.draw.integers(0, WEIGHT_VERSION + 1, len(sampled)))
        return TrainingSequence(
            token_ids=self.draw.integers(0, VOCABULARY, len(sampled)),
            loss_mask=sampled & ~masked,
            logprobs=np.where(sampled, -self.draw.exponential(1.0, len(sampled)), 0).astype(np.float32),
            versions=np.where(sampled, versions, -1).astype(np.int32),
            group=group,
            reward=reward,
            truncated=bool(self.draw.random() < 0.2),
        )

    def columns(self, sequences: Sequence[TrainingSequence]) -> StepTokens:
        """Columns of a step, those included that the algorithm needs."""
        tokens = step_tokens(sequences, WEIGHT_VERSION)
        near = tokens.behaviour + 0.1 * torch.sin(50 * tokens.behaviour)
        needed: dict[str, Tensor] = {
            need: near - 0.05 * number for number, need in enumerate(sorted(self.algorithm.needs))
        }
        if "last_values" in self.algorithm.needs:
            needed["last_values"] = torch.tensor([float(np.sin(sequence.token_ids.sum())) for sequence in sequences])
        return msgspec.structs.replace(tokens, **needed, baselines=0.5 * tokens.rewards)

    def losses(self, sequences: Sequence[TrainingSequence]) -> tuple[Tensor, Tensor, Batch]:
        """Losses of the kept tokens, their gradient by the log-probabilities, and the batch.

        Both are `[tokens]`, sequence after sequence.
        """
        tokens = self.columns(sequences)
        advantages: Advantages = self.algorithm.advantages(tokens)
        rows = list(range(len(sequences)))
        (packed,) = make_micro_batches(
            sequences, rows, 10**9, torch.device("cpu"), whole_groups=self.algorithm.whole_groups
        )
        logp = (tokens.behaviour - 0.01).clamp(max=-1e-4)[packed.token_index].requires_grad_()
        batch = loss_batch(packed, tokens, advantages, tokens.behaviour[packed.token_index], exact=True)
        losses = self.algorithm.loss(batch, logp).losses
        (gradient,) = torch.autograd.grad(losses.sum(), logp)
        order = packed.token_index.argsort()
        return losses.detach()[order], gradient[order], batch


Case = Callable[[AlgorithmHarness], None]


def harness_of(algorithm: Algorithm) -> AlgorithmHarness:
    """Returns the harness of an algorithm, with random numbers of one seed."""
    return AlgorithmHarness(algorithm.resolve(), np.random.default_rng(0))


def advantages_are_finite_for_any_rewards(harness: AlgorithmHarness) -> None:
    for values in REWARDS:
        for _ in range(STEPS):
            tokens = harness.columns(harness.sequences(values))
            advantages = harness.algorithm.advantages(tokens)
            assert advantages.tokens.shape == tokens.behaviour.shape
            assert advantages.tokens.isfinite().all(), values
            assert advantages.returns is None or advantages.returns.isfinite().all(), values
            assert advantages.kept is None or advantages.kept.shape == tokens.behaviour.shape


def losses_and_gradients_are_finite(harness: AlgorithmHarness) -> None:
    for values in REWARDS:
        losses, gradient, _ = harness.losses(harness.sequences(values))
        assert losses.isfinite().all(), values
        assert gradient.isfinite().all(), values


def a_step_has_the_same_losses_again(harness: AlgorithmHarness) -> None:
    sequences = harness.sequences((0.0, 1.0))
    first, second = harness.losses(sequences), harness.losses(sequences)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


def the_order_of_groups_changes_no_loss(harness: AlgorithmHarness) -> None:
    sequences = harness.sequences((0.0, 1.0, 0.5))
    size = harness.algorithm.group_size
    order = [index for group in reversed(range(GROUPS)) for index in range(group * size, (group + 1) * size)]
    straight, _, _ = harness.losses(sequences)
    turned, _, _ = harness.losses([sequences[index] for index in order])
    tokens = [int(sequence.loss_mask[1:].sum()) for sequence in sequences]
    parts = dict(zip(order, torch.split(turned, [tokens[index] for index in order]), strict=True))
    assert torch.allclose(straight, torch.cat([parts[index] for index in range(len(sequences))]), atol=1e-5)


def columns_stay_as_they_are(harness: AlgorithmHarness) -> None:
    tokens = harness.columns(harness.sequences((0.0, 1.0)))
    before = {
        name: column.clone() for name, column in msgspec.structs.asdict(tokens).items() if isinstance(column, Tensor)
    }
    harness.algorithm.advantages(tokens)
    assert all(torch.equal(getattr(tokens, name), column) for name, column in before.items())


def shares_of_calls_are_finite_and_not_negative(harness: AlgorithmHarness) -> None:
    counts = torch.tensor([3.0, 0.0, 7.0, 1.0], dtype=torch.float64)
    shares = harness.algorithm.shares(counts, torch.tensor([0, 0, 1, 2]))
    assert shares.shape == counts.shape
    assert shares.isfinite().all()
    assert (shares >= 0).all()


def its_table_contradicts_nothing(harness: AlgorithmHarness) -> None:
    assert list(harness.algorithm.problems()) == []


CASES: tuple[Case, ...] = (
    advantages_are_finite_for_any_rewards,
    losses_and_gradients_are_finite,
    a_step_has_the_same_losses_again,
    the_order_of_groups_changes_no_loss,
    columns_stay_as_they_are,
    shares_of_calls_are_finite_and_not_negative,
    its_table_contradicts_nothing,
)
