"""Grouping of sequences by episode, and masks of the tokens that a sequence trains.

An episode becomes one sequence or several (`task.export_style`, a conversation that branches or whose token prefix
changed). Sequences of an episode share its name; a sequence without a name is an episode of its own. A later sequence
may repeat calls of an earlier one as context: these are sampled tokens, too, but not the sequence's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from areal_actors.core.lazy import LazyModule
from areal_actors.core.values import PROMPT_VERSION, SequenceCall, TrainingSequence

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = LazyModule("numpy")


EpisodeKey = tuple[int, str | int]
"""Group and name of an episode; the index of the sequence if it has no name."""


def episode_key(sequences: Sequence[TrainingSequence], index: int) -> EpisodeKey:
    """Returns the key of the episode of a sequence."""
    sequence = sequences[index]
    return sequence.group, sequence.episode or index


def sequences_by_episode(sequences: Sequence[TrainingSequence]) -> list[list[TrainingSequence]]:
    """Returns the sequences of each episode, in the order in which episodes and sequences first occur."""
    by_episode: dict[EpisodeKey, list[TrainingSequence]] = {}
    for index, sequence in enumerate(sequences):
        by_episode.setdefault(episode_key(sequences, index), []).append(sequence)
    return list(by_episode.values())


def calls_of(sequence: TrainingSequence) -> tuple[SequenceCall, ...]:
    """Returns the calls trained in a sequence.

    If it names none, one call over all its tokens with the reward of the sequence.
    """
    return sequence.calls or (
        SequenceCall(start=0, end=len(sequence.token_ids), reward=sequence.reward, truncated=sequence.truncated),
    )


def own_tokens(sequence: TrainingSequence) -> NDArray[np.bool_]:
    """Returns the mask of sampled tokens of the sequence's own calls, of any age: bool `[n]`."""
    own: NDArray[np.bool_] = np.zeros(len(sequence.token_ids), dtype=bool)
    for call in calls_of(sequence):
        own[call.start : call.end] = True
    own &= np.not_equal(sequence.versions, PROMPT_VERSION)
    return own
