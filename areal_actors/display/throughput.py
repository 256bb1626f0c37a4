"""Throughput and utilisation of engines, computed from their busy intervals."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

from areal_actors.messages import Throughput

Interval = tuple[float, float]
"""Start and end, in seconds since the epoch."""


def overlap_share(throughputs: Iterable[Throughput]) -> float:
    """Returns the share of training time during which generation was busy too.

    0 in synchronous training and without training.
    """
    intervals = [
        (throughput.side, (throughput.started, throughput.started + throughput.seconds)) for throughput in throughputs
    ]
    generated = busy_seconds(interval for side, interval in intervals if side == "generation")
    trained = busy_seconds(interval for side, interval in intervals if side == "training")
    either = busy_seconds(interval for _, interval in intervals)
    return max(generated + trained - either, 0.0) / trained if trained else 0.0


def busy_while_training(throughputs: Iterable[Throughput]) -> float:
    """Returns the share of time from first to last training in which the trainer was busy; 0 without training."""
    training = [interval for interval in throughputs if interval.side == "training"]
    if not training:
        return 0.0
    window = min(one.started for one in training), max(one.started + one.seconds for one in training)
    return busy_share(training, window) if window[1] > window[0] else 0.0


def tokens_per_second(throughputs: Iterable[Throughput]) -> float:
    """Returns tokens per busy second, summed over actors.

    A step counts when it is finished, with all the time that it took.
    """
    tokens: dict[str, int] = defaultdict(int)
    seconds: dict[str, float] = defaultdict(float)
    for throughput in throughputs:
        if throughput.tokens:
            tokens[throughput.actor] += throughput.tokens
            seconds[throughput.actor] += throughput.token_seconds or throughput.seconds
    return sum(tokens[actor] / seconds[actor] for actor in tokens if seconds[actor] > 0)


def busy_share(throughputs: Iterable[Throughput], window: Interval) -> float:
    """Returns the share of the window in which at least one actor was busy."""
    start, end = window
    inside = (
        (max(throughput.started, start), min(throughput.started + throughput.seconds, end))
        for throughput in throughputs
    )
    return busy_seconds(interval for interval in inside if interval[0] < interval[1]) / (end - start)


def busy_seconds(intervals: Iterable[Interval]) -> float:
    """Returns the total seconds of the union of intervals."""
    seconds, latest = 0.0, -math.inf
    for start, end in sorted(intervals):
        seconds += max(end - max(start, latest), 0.0)
        latest = max(latest, end)
    return seconds
