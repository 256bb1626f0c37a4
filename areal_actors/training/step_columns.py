"""The columns of a step over all trained tokens that follow from its sequences alone, without torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from areal_actors.core.errors import EngineError, UntrainableBatch
from areal_actors.core.values import PROMPT_VERSION, SequenceCall, TrainingSequence
from areal_actors.sequences.episodes import calls_of, episode_key, sequences_by_episode
from areal_actors.training.algorithms.base import Advantages, NamedColumn, StepTokens
from areal_actors.training.span_columns import span_columns


class ArrayColumn(np.ndarray[Any, Any]):
    """A NumPy array with the methods of a tensor that advantages use: a reader of a log computes them without torch.

    Algorithms of this package get it; a class from elsewhere gets tensors, since it may call any function of torch.
    """

    @classmethod
    def of(cls, values: NDArray[Any]) -> ArrayColumn:
        """Returns the column of an array."""
        return values.view(cls)

    def new_zeros(self, size: int) -> ArrayColumn:
        """Returns zeros of this type."""
        return self.of(np.zeros(size, self.dtype))

    def new_ones(self, size: int) -> ArrayColumn:
        """Returns ones of this type."""
        return self.of(np.ones(size, self.dtype))

    def index_add(self, _: int, index: ArrayColumn, values: ArrayColumn) -> ArrayColumn:
        """Returns this column with values added at their indices, one after the other."""
        total = self.copy()
        np.add.at(total, index, values)
        return total

    def scatter_reduce(
        self, _: int, index: ArrayColumn, values: ArrayColumn, kind: str, *, include_self: bool
    ) -> ArrayColumn:
        """Returns this column with the least (`amin`) or greatest (`amax`) of the values at each index that has one."""
        assert not include_self
        order = np.argsort(values if kind == "amax" else -values, kind="stable")
        reduced = self.copy()
        reduced[index[order]] = values[order]  # the last of equal indices stays
        return reduced

    def masked_fill(self, mask: ArrayColumn, value: float) -> ArrayColumn:
        """Returns this column with a value where the mask is True."""
        return self.of(np.where(mask, self.dtype.type(value), self))

    def clamp(self, min: float | None = None, max: float | None = None) -> ArrayColumn:  # noqa: A002 - names of tensors
        """Returns the column within bounds."""
        return self.of(np.clip(self, min, max))

    def abs(self) -> ArrayColumn:
        """Returns absolute values."""
        return self.of(np.abs(self))

    def maximum(self, other: ArrayColumn) -> ArrayColumn:
        """Returns the greater of two values."""
        return self.of(np.maximum(self, other))

    def square(self) -> ArrayColumn:
        """Returns squares."""
        return self.of(np.square(self))

    def sqrt(self) -> ArrayColumn:
        """Returns square roots."""
        return self.of(np.asarray(np.sqrt(self)))

    def double(self) -> ArrayColumn:
        """Returns the column as float64."""
        return self.to(np.dtype(np.float64))

    def to(self, kind: np.dtype[Any]) -> ArrayColumn:
        """Returns the column as another type."""
        return self.of(self.astype(kind))


def step_columns(
    sequences: Sequence[TrainingSequence], weight_version: int, column: Callable[[NDArray[Any]], Any]
) -> StepTokens:
    """Returns the columns of a step that cost no forward pass.

    `column` makes a tensor of an array, or `ArrayColumn.of`.

    Raises:
        UntrainableBatch: no sequence has a trained token.
        EngineError: a reward is not finite, or a trained token belongs to no call of its sequence.
    """
    if not any(sequence.loss_mask[1:].any() for sequence in sequences):
        raise UntrainableBatch(
            "no sequence of the batch has a trained token: everything in it was masked, or nothing was sampled"
        )
    masks = [sequence.loss_mask[1:] for sequence in sequences]
    own = [calls_of(sequence) for sequence in sequences]
    for index, sequence in enumerate(sequences):
        for reward in (sequence.reward, *(call.reward for call in own[index])):
            if not math.isfinite(reward):
                raise EngineError(
                    f"the reward of sequence {index} (group {sequence.group}) is {reward}; rewards must be finite"
                )
    keys = [(episode_key(sequences, index), call.sample) for index, calls in enumerate(own) for call in calls]
    samples = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    roles = dict(zip(keys, (call.role for calls in own for call in calls), strict=True))
    first_calls = np.cumsum([0, *map(len, own)])

    def trained_values(name: str) -> NDArray[Any]:
        return np.concatenate(
            [getattr(sequence, name)[1:][mask] for sequence, mask in zip(sequences, masks, strict=True)]
        )

    def integers(values: Sequence[int]) -> Any:
        return column(np.array(values, np.int64))

    return StepTokens(
        sequences=column(np.repeat(np.arange(len(sequences)), [int(mask.sum()) for mask in masks])),
        calls=column(
            np.concatenate(
                [_calls_of_trained(sequences, index) + first_calls[index] for index in range(len(sequences))]
            )
        ),
        rewards=column(np.array([call.reward for calls in own for call in calls], np.float64)),
        call_sequences=integers([index for index, calls in enumerate(own) for _ in calls]),
        samples=integers([samples[key] for key in keys]),
        groups=integers(_comparison_groups([(key[0][0], roles[key]) for key in samples])),
        sampled=integers(
            [_sampled_count(sequence, call) for sequence, calls in zip(sequences, own, strict=True) for call in calls]
        ),
        truncated=column(np.array([call.truncated for calls in own for call in calls], np.bool_)),
        behaviour=column(trained_values("logprobs").astype(np.float32)),
        versions=column(trained_values("versions").astype(np.int64)),
        weight_version=weight_version,
        named_rewards=tuple(_named_columns([call for calls in own for call in calls], column)),
        baselines=_baseline_column([call for calls in own for call in calls], column),
        spans=span_columns(sequences, own, column) if any(call.spans for calls in own for call in calls) else None,
    )


def _baseline_column(calls: Sequence[SequenceCall], column: Callable[[NDArray[Any]], Any]) -> Any:
    """Returns the role-wise baselines of the calls; None if one has none."""
    baselines = [call.baseline for call in calls]
    return None if None in baselines else column(np.array(baselines, np.float64))


def _named_columns(calls: Sequence[SequenceCall], column: Callable[[NDArray[Any]], Any]) -> Iterator[NamedColumn]:
    """Yields the named rewards of the calls; none if a call has others than the first."""
    names = [(reward.name, reward.weight) for reward in calls[0].named_rewards]
    if any(len(call.named_rewards) != len(names) for call in calls):
        return
    for place, (name, weight) in enumerate(names):
        yield NamedColumn(name, weight, column(np.array([call.named_rewards[place].reward for call in calls], float)))


def _comparison_groups(samples: Sequence[tuple[int, str]]) -> list[int]:
    """Number of the group with which each sample is compared, by its group and its role."""
    if not any(role for _, role in samples):
        return [group for group, _ in samples]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(samples))}
    return [numbers[key] for key in samples]


def _calls_of_trained(sequences: Sequence[TrainingSequence], index: int) -> NDArray[np.int64]:
    """Index, among the sequence's calls, of the call of each trained token."""
    calls = calls_of(sequences[index])
    positions = np.flatnonzero(sequences[index].loss_mask[1:]) + 1
    call_numbers = np.searchsorted([call.start for call in calls], positions, side="right") - 1
    outside = (call_numbers < 0) | (positions >= np.array([call.end for call in calls])[call_numbers])
    if outside.any():
        where = int(positions[outside][0])
        raise EngineError(
            f"sequence {index} (group {sequences[index].group}): its token at position {where} is trained but belongs"
            f" to none of the sequence's calls, which are at {[(call.start, call.end) for call in calls]}; give every"
            " trained token a call"
        )
    return call_numbers.astype(np.int64)


def _sampled_count(sequence: TrainingSequence, call: SequenceCall) -> int:
    return int(np.count_nonzero(sequence.versions[call.start : call.end] != PROMPT_VERSION))


def reward_metrics(
    sequences: Sequence[TrainingSequence], tokens: StepTokens, advantages: Advantages
) -> dict[str, float]:
    """Means and deviations of rewards over episodes, and of advantages (means of their tokens) over samples."""
    rewards = np.array([episode[0].reward for episode in sequences_by_episode(sequences)], np.float64)
    groups, samples = np.asarray(tokens.groups), np.asarray(tokens.samples[tokens.calls])
    values = np.asarray(advantages.tokens, np.float64)
    counts = np.bincount(samples)
    by_sample = np.bincount(samples, weights=values)[counts > 0] / counts[counts > 0]
    present, with_signal = np.unique(groups), np.unique(groups[samples[values != 0]])
    return {
        "reward_mean": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "advantage_mean": float(by_sample.mean()),
        "advantage_std": float(by_sample.std()),
        "advantage_max": float(by_sample.max()),
        "advantage_min": float(by_sample.min()),
        "groups": float(len(present)),
        "groups_without_signal": float(len(present) - len(with_signal)),
        **advantages.metrics,
    }
