"""The batches of one side of a `what-if`: metrics of their steps, and the advantages of their episodes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from areal_actors.core.errors import EngineError, UntrainableBatch
from areal_actors.core.values import TrainingSequence
from areal_actors.replay.recorded_batches import RecordedBatches
from areal_actors.replay.trained_columns import known_columns, without_advantages
from areal_actors.sequences.step_metrics import batch_metrics
from areal_actors.training.algorithms.base import Advantages, StepTokens, refuse_unused_spans
from areal_actors.training.step_columns import reward_metrics


class Side(msgspec.Struct):
    """The batches of one side of the comparison."""

    steps: list[dict[str, float]]
    """Metrics of each step, by their names in `metrics.jsonl`."""
    episodes: list[frozenset[str]]
    """Episodes that each step trains."""
    trained_tokens: list[int]
    dropped: dict[str, int]
    """Groups that were dropped, by reason."""
    unscored: dict[str, str]
    """Episodes that the reward function failed on, with the first reason of each."""
    ended: str
    """Reason why the filter would have ended the run; empty if it would not."""
    without_advantages: str
    """Reason why advantages are not known; empty if they are."""
    newer: int = 0
    """First step, from 1, with tokens of newer weights than its own; 0 if there is none."""

    def mean(self, name: str) -> float:
        """Mean of a metric over the steps that have it; NaN if none has."""
        return mean_of([step[name] for step in self.steps if name in step])


def side_of(recorded: RecordedBatches) -> tuple[Side, dict[str, float]]:
    """Returns one side, and the mean advantage of the trained tokens of each episode, where advantages are known."""
    by_episode: dict[str, float] = {}
    algorithm = recorded.recipe.algorithm.resolve()
    side = Side(
        [], [], [], dict(recorded.dropped), recorded.unscored, recorded.exhausted, without_advantages(algorithm)
    )
    for batch in recorded.batches:
        event, sequences = batch.event, recorded.sequences(batch.event)
        metrics = batch_metrics(sequences, event)
        if not side.without_advantages:
            try:
                tokens = known_columns(algorithm, sequences, event.step)
                refuse_unused_spans(algorithm, tokens)
                advantages = algorithm.advantages(tokens)
                metrics |= reward_metrics(sequences, tokens, advantages)
                by_episode |= episode_advantages(sequences, tokens, advantages)
            except UntrainableBatch:
                metrics |= {"advantage_std": 0.0}
            except EngineError as error:
                side.without_advantages = str(error)
        side.steps.append(metrics)
        if not side.newer and any((sequence.versions[sequence.loss_mask] > event.step).any() for sequence in sequences):
            side.newer = len(side.steps)
        side.episodes.append(frozenset(member.episode for group in event.groups for member in group))
        side.trained_tokens.append(int(sum(np.count_nonzero(sequence.loss_mask) for sequence in sequences)))
    return side, by_episode


def episode_advantages(
    sequences: Sequence[TrainingSequence], tokens: StepTokens, advantages: Advantages
) -> dict[str, float]:
    """Returns the mean advantage of the trained tokens of each episode, by name."""
    owners, values = np.asarray(tokens.sequences), np.asarray(advantages.tokens, np.float64)
    totals = np.bincount(owners, weights=values, minlength=len(sequences))
    counts = np.bincount(owners, minlength=len(sequences))
    by_episode: dict[str, list[float]] = {}
    for sequence, total, count in zip(sequences, totals.tolist(), counts.tolist(), strict=True):
        pair = by_episode.setdefault(sequence.episode, [0.0, 0])
        pair[0], pair[1] = pair[0] + total, pair[1] + count
    return {episode: total / count for episode, (total, count) in by_episode.items() if count}


def mean_of(values: Sequence[float]) -> float:
    """Returns the mean; NaN of nothing."""
    return sum(values) / len(values) if values else math.nan
