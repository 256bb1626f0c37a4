"""Columns of rewards of spans: the distinct spans of a step, and the trained tokens that each credits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from areal_actors.core.errors import EngineError
from areal_actors.core.values import SequenceCall, TrainingSequence
from areal_actors.sequences.episodes import episode_key
from areal_actors.training.algorithms.base import CreditPlace, SpanColumns


def span_columns(
    sequences: Sequence[TrainingSequence],
    calls: Sequence[Sequence[SequenceCall]],
    column: Callable[[NDArray[Any]], Any],
) -> SpanColumns:
    """Returns the spans of a step that has some.

    Args:
        sequences: of the step.
        calls: of each sequence.
        column: makes a tensor of an array.

    Raises:
        EngineError: a reward is not finite, or a span is outside of its call.
    """
    numbers: dict[tuple[Any, str], int] = {}
    comparisons: dict[tuple[int, str], int] = {}
    names: list[str] = []
    rewards: list[float] = []
    groups: list[int] = []
    places: list[CreditPlace] = []
    first = 0
    for index, sequence in enumerate(sequences):
        trained = np.flatnonzero(sequence.loss_mask[1:]) + 1
        for call in calls[index]:
            for span in call.spans:
                if not math.isfinite(span.reward) or not call.start <= span.start < span.end <= call.end:
                    raise EngineError(
                        f"sequence {index} (group {sequence.group}): the span `{span.name}` from {span.start} to"
                        f" {span.end} with reward {span.reward} is none of its call at {call.start} to {call.end}"
                    )
                number = numbers.setdefault((episode_key(sequences, index), span.key), len(numbers))
                if number == len(names):
                    names.append(span.name)
                    rewards.append(span.reward)
                    groups.append(comparisons.setdefault((sequence.group, span.name), len(comparisons)))
                before, start, end = (
                    first + int(place) for place in np.searchsorted(trained, (call.start, span.start, span.end))
                )
                places.append(CreditPlace(number, before, start, end, span.share, span.is_carried))
        first += len(trained)
    return SpanColumns(
        tuple(names), column(np.array(rewards, np.float64)), column(np.array(groups, np.int64)), tuple(places)
    )
