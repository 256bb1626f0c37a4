"""Chooses the episodes of a run that become data: the best of each group, or the best and the worst of it.

Of attempts at one episode the last counts. Episodes with the same sampled tokens as a better or earlier one of their
group are left out: they would only weigh one answer more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from areal_actors.core.scalars import differ
from areal_actors.core.values import Trajectory
from areal_actors.reader.records import EndedEpisode


class Selection(msgspec.Struct):
    """Chosen episodes, and the number of those that were left out, by reason."""

    chosen: list[EndedEpisode] = []
    pairs: list[tuple[EndedEpisode, EndedEpisode]] = []
    """A better and a worse episode of one group each."""
    left_out: Counter[str] = msgspec.field(default_factory=Counter)
    highest: float | None = None
    """Highest reward of the run."""


def groups_of(ended: Iterable[EndedEpisode]) -> list[list[EndedEpisode]]:
    """Returns the exported episodes by group, in the order of the log; the last attempt of each."""
    latest = {attempt.episode: attempt for attempt in ended if attempt.trajectory is not None}
    groups: dict[str, list[EndedEpisode]] = {}
    for attempt in latest.values():
        groups.setdefault(attempt.group, []).append(attempt)
    return list(groups.values())


def select_best(ended: Iterable[EndedEpisode], *, best: int, least_reward: float) -> Selection:
    """Returns the best episodes of each group, highest reward first, earlier ones first among equals.

    Args:
        ended: ended attempts of a run.
        best: largest number of episodes of a group.
        least_reward: smallest reward of a chosen episode.
    """
    selection = Selection()
    for group in groups_of(ended):
        ranked = _rank_by_reward(group)
        selection.highest = max(reward_of(ranked[0]), selection.highest or reward_of(ranked[0]))
        good = [attempt for attempt in ranked if reward_of(attempt) >= least_reward]
        selection.left_out["a lower reward"] += len(ranked) - len(good)
        distinct = list(_drop_repeated(good))
        selection.left_out["the same tokens as another of their group"] += len(good) - len(distinct)
        selection.left_out["better ones of their group"] += max(len(distinct) - best, 0)
        selection.chosen += distinct[:best]
    return selection


def select_pairs(ended: Iterable[EndedEpisode], *, margin: float) -> Selection:
    """Returns the best and the worst episode of each group, if their rewards differ by at least `margin`.

    Only groups whose two episodes are one sequence each and answer the same prompt tokens have a pair.
    """
    selection = Selection()
    for group in groups_of(ended):
        ranked = _rank_by_reward(group)
        better, worse = ranked[0], ranked[-1]
        difference = reward_of(better) - reward_of(worse)
        if not differ(reward_of(worse), reward_of(better)) or difference < margin:
            selection.left_out["rewards that are too close"] += 1
        elif not (_is_single_call(better) and _is_single_call(worse)):
            selection.left_out["several model calls"] += 1
        elif _prompt_of(better) != _prompt_of(worse):
            selection.left_out["different prompts"] += 1
        else:
            selection.pairs.append((better, worse))
    return selection


def reward_of(attempt: EndedEpisode) -> float:
    """Returns the reward of an exported episode."""
    return trajectory_of(attempt).reward


def trajectory_of(attempt: EndedEpisode) -> Trajectory:
    """Returns the trajectory of an exported episode."""
    assert attempt.trajectory is not None
    return attempt.trajectory


def _rank_by_reward(group: Sequence[EndedEpisode]) -> list[EndedEpisode]:
    return sorted(group, key=reward_of, reverse=True)


def _drop_repeated(group: Iterable[EndedEpisode]) -> Iterator[EndedEpisode]:
    """Yields the episodes that no earlier one of these repeats."""
    sampled: set[tuple[bytes, ...]] = set()
    for attempt in group:
        tokens = tuple(call.completion.token_ids for call in trajectory_of(attempt).interactions)
        if tokens not in sampled:
            sampled.add(tokens)
            yield attempt


def _is_single_call(attempt: EndedEpisode) -> bool:
    calls = trajectory_of(attempt).interactions
    return len(calls) == 1 and calls[0].trained


def _prompt_of(attempt: EndedEpisode) -> bytes:
    return trajectory_of(attempt).interactions[0].prompt_suffix
