"""Throughput and utilisation of engines, computed from their busy intervals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from areal_actors.messages import Throughput

Interval = tuple[float, float]
"""Start and end, in seconds since the epoch."""


def overlap_share(throughputs: Iterable[Throughput]) -> float:
    """Returns the share of training time during which generation was busy too; 0 in synchronous training and without training."""
    sides: dict[str, list[Interval]] = {"generation": [], "training": []}
    for one in throughputs:
        sides[one.side].append((one.started, one.started + one.seconds))
    generation, training = union(sides["generation"]), union(sides["training"])
    trained = total(training)
    return total(intersection(generation, training)) / trained if trained else 0.0


def busy_while_training(throughputs: Iterable[Throughput]) -> float:
    """Returns the share of time from first to last training in which the trainer was busy; 0 without training."""
    training = [one for one in throughputs if one.side == "training"]
    if not training:
        return 0.0
    window = min(one.started for one in training), max(one.started + one.seconds for one in training)
    return busy_share(training, window) if window[1] > window[0] else 0.0


def tokens_per_second(throughputs: Iterable[Throughput]) -> float:
    """Returns tokens per busy second, summed over actors."""
    tokens: dict[str, int] = defaultdict(int)
    seconds: dict[str, float] = defaultdict(float)
    for one in throughputs:
        tokens[one.actor] += one.tokens
        seconds[one.actor] += one.seconds
    return sum(tokens[actor] / seconds[actor] for actor in tokens if seconds[actor] > 0)


def busy_share(throughputs: Iterable[Throughput], window: Interval) -> float:
    """Returns the share of the window in which at least one actor was busy."""
    busy = intersection(union((one.started, one.started + one.seconds) for one in throughputs), [window])
    return total(busy) / (window[1] - window[0])


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Returns the union as sorted disjoint intervals."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def intersection(one: list[Interval], other: list[Interval]) -> list[Interval]:
    """Returns the intersection of two lists of sorted disjoint intervals."""
    common: list[Interval] = []
    i = j = 0
    while i < len(one) and j < len(other):
        start, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if start < end:
            common.append((start, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return common


def total(intervals: Iterable[Interval]) -> float:
    """Returns the total seconds of disjoint intervals."""
    return sum(end - start for start, end in intervals)
