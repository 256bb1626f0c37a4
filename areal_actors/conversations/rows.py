"""From a trajectory to the rows that are trained: one per leaf path of its conversation tree, or one per call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import msgspec
import numpy as np

from areal_actors.conversations.credit import Credit, row_ends, row_rewards
from areal_actors.values import PROMPT_VERSION, Interaction, Row, Trajectory

EPISODE = Credit()
"""Every row is worth what the episode was."""


def rewarded(interactions: Sequence[Interaction], reward: float | None, rewards: Mapping[str, float]) -> tuple[Interaction, ...]:
    """Interactions with their rewards: by id, and `reward` for the last completed one."""
    by_id = dict(rewards)
    if reward is not None and interactions:
        by_id[interactions[-1].id] = reward
    return tuple(msgspec.structs.replace(turn, reward=by_id.get(turn.id, turn.reward)) for turn in interactions)


def rows_of(trajectory: Trajectory, group: int, oldest_version: int, credit: Credit = EPISODE) -> list[Row]:
    """One row per leaf path of the conversation tree, or per call, worth what `credit` says.

    Every sampled token is trained in one row only: where paths share a beginning, later rows keep it as context, and the row
    of a call keeps the calls before it. So are tokens older than `oldest_version`.
    """
    by_id = {turn.id: turn for turn in trajectory.interactions}
    worth = row_rewards(trajectory, credit)
    rows: list[Row] = []
    trained: set[str] = set()
    for end in row_ends(trajectory.interactions, credit.style):
        path = _path(end, by_id)
        context = by_id.keys() - {end.id} if credit.style == "individual" else trained
        rows.append(_row(path, context, worth[end.id], group, oldest_version))
        trained |= {turn.id for turn in path}
    return rows


def _path(leaf: Interaction, by_id: Mapping[str, Interaction]) -> list[Interaction]:
    path = [leaf]
    while path[-1].parent:
        path.append(by_id[path[-1].parent])
    return path[::-1]


def _row(path: Sequence[Interaction], trained: AbstractSet[str], reward: float, group: int, oldest_version: int) -> Row:
    ids: list[np.ndarray[Any, Any]] = []
    mask: list[np.ndarray[Any, Any]] = []
    logprobs: list[np.ndarray[Any, Any]] = []
    versions: list[np.ndarray[Any, Any]] = []
    for turn in path:
        prompt = np.frombuffer(turn.prompt_suffix, dtype="<u4")
        made_by = turn.completion.versions_array()
        ids += [prompt, turn.completion.ids_array()]
        mask += [np.zeros(len(prompt), dtype=bool), (made_by >= oldest_version) & (turn.id not in trained)]
        logprobs += [np.zeros(len(prompt), dtype=np.float32), turn.completion.logprobs_array()]
        versions += [np.full(len(prompt), PROMPT_VERSION, dtype=np.int32), made_by]
    return Row(
        token_ids=np.concatenate(ids).astype(np.int64),
        loss_mask=np.concatenate(mask),
        logprobs=np.concatenate(logprobs).astype(np.float32),
        versions=np.concatenate(versions),
        group=group,
        reward=reward,
        truncated=path[-1].finish_reason == "length",
    )
