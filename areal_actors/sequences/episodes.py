"""Grouping of rows by episode, and masks of the tokens that a row trains.

An episode becomes one row or several (`task.export_style`, a conversation that branches or whose token prefix changed). Rows of an
episode share its name; a row without a name is an episode of its own. A later row may repeat calls of an earlier one as context:
these are sampled tokens, too, but not the row's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from areal_actors.core.values import PROMPT_VERSION, Row, RowCall

EpisodeKey = tuple[int, str | int]
"""Group and name of an episode; the index of the row if it has no name."""


def episode_key(rows: Sequence[Row], index: int) -> EpisodeKey:
    """Returns the key of the episode of a row."""
    row = rows[index]
    return row.group, row.episode or index


def rows_by_episode(rows: Sequence[Row]) -> list[list[Row]]:
    """Returns the rows of each episode, in the order in which episodes and rows first occur."""
    found: dict[EpisodeKey, list[Row]] = {}
    for index, row in enumerate(rows):
        found.setdefault(episode_key(rows, index), []).append(row)
    return list(found.values())


def calls_of(row: Row) -> tuple[RowCall, ...]:
    """Returns the calls trained in a row; if it names none, one call over all its tokens with the reward of the row."""
    return row.calls or (RowCall(start=0, end=len(row.token_ids), reward=row.reward, truncated=row.truncated),)


def own_tokens(row: Row) -> NDArray[np.bool_]:
    """Returns the mask of sampled tokens of the row's own calls, of any age: bool `[n]`."""
    own = np.zeros(len(row.token_ids), dtype=bool)
    for call in calls_of(row):
        own[call.start : call.end] = True
    return own & np.not_equal(row.versions, PROMPT_VERSION)
