"""Masks and advantages of the sampled tokens of a recorded batch.

What a trainer computes before its first forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from areal_actors.core.column_check import trajectory_fault
from areal_actors.core.errors import EngineError, UntrainableBatch
from areal_actors.core.lazy import LazyModule
from areal_actors.core.values import Interaction, TrainingSequence, Trajectory
from areal_actors.reader.records import RecordedBatch
from areal_actors.recipe.recipe import Recipe
from areal_actors.sequences.build import call_places, sequences_of, token_path
from areal_actors.sequences.credit import Credit, sequence_ends
from areal_actors.training import algorithms
from areal_actors.training.algorithms.base import Algorithm, StepTokens, refuse_unused_spans
from areal_actors.training.step_columns import ArrayColumn, step_columns

step_data: Any = LazyModule("areal_actors.training.step_data")
MODEL_COLUMNS = frozenset({"reference", "values", "last_values", "teacher", "rescored"})
"""Columns of `StepTokens` that only a model can compute."""
Columns = tuple[NDArray[np.bool_], NDArray[np.float64]]
"""Mask of trained tokens and advantages; NaN where a token is not trained or its advantage is not known."""
Row = tuple[Trajectory, Interaction, TrainingSequence]
"""A sequence with its trajectory and its last call."""


class TrainedColumns(msgspec.Struct, frozen=True):
    """Columns of the sampled tokens of a batch."""

    by_call: dict[tuple[str, str], Columns]
    """By names of episode and call."""
    without_advantages: str
    """Reason why advantages are not known; empty if they are."""


def without_advantages(algorithm: Algorithm) -> str:
    """Returns the reason why advantages of an algorithm do not follow from a log; empty if they do."""
    if needed := sorted(algorithm.needs & MODEL_COLUMNS):
        return f"{type(algorithm).__name__} needs {', '.join(needed)}, which only a model can compute"
    return ""


def trained_columns(batch: RecordedBatch, trajectories: Mapping[int, Trajectory], recipe: Recipe) -> TrainedColumns:
    """Returns the columns of a batch.

    Args:
        batch: of the log.
        trajectories: at least those of the batch, by their positions in the log.
        recipe: of the run when it trained the batch.
    """
    algorithm, rows = recipe.algorithm.resolve(), list(_rows(batch, trajectories, Credit.of(recipe.task)))
    masks = [_predicted_mask(sequence) for _, _, sequence in rows]
    values = [np.full(len(mask), np.nan) for mask in masks]
    unknown = without_advantages(algorithm)
    if not unknown:
        try:
            step = known_columns(algorithm, [sequence for _, _, sequence in rows], batch.event.step)
            refuse_unused_spans(algorithm, step)
            advantages = algorithm.advantages(step)
        except UntrainableBatch:
            pass
        except EngineError as error:
            unknown = str(error)
        else:
            tokens = np.asarray(advantages.tokens, np.float64)
            kept = np.ones(len(tokens), dtype=bool) if advantages.kept is None else np.asarray(advantages.kept)
            first = 0
            for mask, column in zip(masks, values, strict=True):
                own = slice(first, first := first + int(mask.sum()))
                column[mask] = tokens[own]
                mask[mask] = kept[own]
    return TrainedColumns(_by_call(rows, masks, values), unknown)


def known_columns(algorithm: Algorithm, sequences: list[TrainingSequence], weight_version: int) -> StepTokens:
    """Returns the columns of a step that a log has, for an algorithm.

    Arrays with the methods of tensors, so that torch is not needed; tensors for the algorithm of another distribution
    or file, which may call any function of torch.
    """
    if type(algorithm).__module__.startswith(f"{algorithms.__name__}."):
        return step_columns(sequences, weight_version, ArrayColumn.of)
    tokens: StepTokens = step_data.step_tokens(sequences, weight_version)
    return tokens


def _rows(batch: RecordedBatch, trajectories: Mapping[int, Trajectory], credit: Credit) -> Iterator[Row]:
    """Yield the sequences that the trainer did not refuse."""
    refused = {left_out.sequence for left_out in batch.refused.sequences} if batch.refused else set()
    index = 0
    for number, group in enumerate(batch.event.groups):
        for member in group:
            trajectory = trajectories[member.sequence]
            if trajectory_fault(trajectory) is not None:
                continue
            ends = sequence_ends(trajectory.interactions, credit.style)
            sequences = sequences_of(trajectory, number, batch.event.oldest_version, credit, member.baselines)
            for end, sequence in zip(ends, sequences, strict=True):
                if index not in refused:
                    yield trajectory, end, sequence
                index += 1


def _predicted_mask(sequence: TrainingSequence) -> NDArray[np.bool_]:
    """Returns the mask without the first token, which no token precedes."""
    mask = sequence.loss_mask.copy()
    mask[:1] = False
    return mask


def _by_call(
    rows: list[Row], masks: list[NDArray[np.bool_]], values: list[NDArray[np.float64]]
) -> dict[tuple[str, str], Columns]:
    """Returns the columns of each call; every token is trained in one of its sequences at most."""
    by_call: dict[tuple[str, str], Columns] = {}
    for (trajectory, end, _), mask, column in zip(rows, masks, values, strict=True):
        by_id = {call.id: call for call in trajectory.interactions}
        for call, start, stop in call_places(token_path(end, by_id)):
            key, own, advantages = (trajectory.episode, call.id), mask[start:stop], column[start:stop]
            if key in by_call:
                earlier, earlier_columns = by_call[key]
                own, advantages = earlier | own, np.where(own, advantages, earlier_columns)
            by_call[key] = own, np.where(own, advantages, np.nan)
    return by_call
