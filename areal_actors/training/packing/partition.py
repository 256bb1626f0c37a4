"""Balanced partitions of weighted items: pure, deterministic functions."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def first_fit_decreasing(weights: Sequence[int], budget: int) -> list[list[int]]:
    """Returns item indices in parts of at most `budget` each; items above the budget have a part of their own.

    Bin packing: items from the heaviest on, each into the first part with room: at most 11/9 of the minimum number of parts,
    plus 6/9 (Dósa 2007, https://doi.org/10.1007/978-3-540-74450-4_1).
    """
    parts: list[list[int]] = []
    room: list[int] = []
    for index in _heaviest_first(weights):
        weight = weights[index]
        fit = next((part for part, left in enumerate(room) if weight <= left), None)
        if fit is None:
            parts.append([index])
            room.append(budget - weight)
        else:
            parts[fit].append(index)
            room[fit] -= weight
    return parts


def greedy_split(weights: Sequence[int], count: int) -> list[list[int]]:
    """Returns item indices in `count` parts (some may be empty): from the heaviest on, each into the lightest part."""
    parts: list[list[int]] = [[] for _ in range(count)]
    lightest = [(0, part) for part in range(count)]
    for index in _heaviest_first(weights):
        total, part = heapq.heappop(lightest)
        parts[part].append(index)
        heapq.heappush(lightest, (total + weights[index], part))
    return parts


def karmarkar_karp(weights: Sequence[int], count: int) -> list[list[int]]:
    """Returns item indices in `count` parts (some may be empty) of nearly equal weight, heaviest part first.

    The largest differencing method (Karmarkar and Karp 1982, UCB/CSD-82-113): the two most uneven partial splits are
    joined, the heaviest part of one with the lightest of the other, until one split is left.
    """
    if not weights:
        return [[] for _ in range(count)]
    splits: list[tuple[int, int, list[tuple[int, list[int]]]]] = []
    for index in _heaviest_first(weights):
        parts = [(weights[index], [index]), *((0, list[int]()) for _ in range(count - 1))]
        splits.append((-_spread(parts), len(splits), parts))
    heapq.heapify(splits)
    serial = len(splits)
    while len(splits) > 1:
        _, _, left = heapq.heappop(splits)
        _, _, right = heapq.heappop(splits)
        joined = [(heavy + light, ours + theirs) for (heavy, ours), (light, theirs) in zip(left, reversed(right), strict=True)]
        joined.sort(key=lambda part: (-part[0], part[1]))
        heapq.heappush(splits, (-_spread(joined), serial, joined))
        serial += 1
    return [sorted(part) for _, part in splits[0][2]]


def _spread(parts: Sequence[tuple[int, list[int]]]) -> int:
    return parts[0][0] - parts[-1][0]


def _heaviest_first(weights: Sequence[int]) -> list[int]:
    return sorted(range(len(weights)), key=lambda index: (-weights[index], index))
