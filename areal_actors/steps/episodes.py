"""Rows by episode: which rows belong together, and which sampled tokens of a row are its own.

An episode becomes one row or several (`task.export_style`, a conversation that parts or whose token prefix broke). Rows of an
episode share its name; a row without a name is an episode of its own. A later row may repeat calls of an earlier one as
context: these are sampled tokens too, but not the row's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from areal_actors.values import PROMPT_VERSION, Row, RowCall

EpisodeKey = tuple[int, str | int]
"""Group and name of an episode; of one without a name the row's index."""


def episode_key(rows: Sequence[Row], index: int) -> EpisodeKey:
    """Key of a row's episode."""
    row = rows[index]
    return row.group, row.episode or index


def rows_by_episode(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows of each episode, in the order in which episodes and rows first occur."""
    found: dict[EpisodeKey, list[Row]] = {}
    for index, row in enumerate(rows):
        found.setdefault(episode_key(rows, index), []).append(row)
    return list(found.values())


def calls_of(row: Row) -> tuple[RowCall, ...]:
    """Calls trained in a row; of a row that names none one call over all its tokens with the row's reward."""
    return row.calls or (RowCall(start=0, end=len(row.token_ids), reward=row.reward, truncated=row.truncated),)


def own_tokens(row: Row) -> NDArray[np.bool_]:
    """Sampled tokens of the row's own calls, whatever their age: bool `[n]`."""
    own = np.zeros(len(row.token_ids), dtype=bool)
    for call in calls_of(row):
        own[call.start : call.end] = True
    return own & np.not_equal(row.versions, PROMPT_VERSION)
