"""An always-valid test of a difference of means: limits that hold at all times, and how many values are missing."""

from __future__ import annotations

import msgspec
import numpy as np

from areal_actors.canary.comparison import MetricComparison
from areal_actors.canary.sequential_test import DifferenceTest, possible_differences


def test_limits_hold_at_all_times_and_meet_the_difference():
    random = np.random.default_rng(0)
    trials, truth = 200, 0.1
    test = DifferenceTest(np.array([-1.0, -0.1, -0.05, 0.0, truth, 0.2, 0.25, 1.0]), 0.05, (trials,))
    missed = np.zeros(trials, dtype=bool)
    for _ in range(600):
        test.add((random.random(trials) < 0.5 + truth).astype(float) - (random.random(trials) < 0.5))
        missed |= (test.lower() > truth) | (test.upper() < truth)
    assert missed.mean() <= 0.1, "each of the two limits is wrong with at most 0.05"
    assert (test.lower() <= test.upper()).all()
    assert np.median(test.lower()) >= -0.05
    assert np.median(test.upper()) <= 0.25


def test_the_number_of_missing_differences_is_about_what_it_takes():
    random = np.random.default_rng(1)
    taken = []
    for _ in range(20):
        test, expected = DifferenceTest(possible_differences(), 0.05), 0
        while test.lower() < 0:
            test.add(float(np.clip(random.normal(0.1, 0.3), -1, 1)))
            if test.count == 30:
                expected = 30 + (test.count_needed(0.0, above=True) or 0)
        taken.append((test.count, expected))
    counts, expected = (np.median([pair[side] for pair in taken]) for side in (0, 1))
    assert counts / 2.5 < expected < counts * 2.5
    assert test.count_needed(0.0, above=True) == 0
    assert test.count_needed(0.0, above=False) is None


def test_a_snapshot_of_a_comparison_goes_on_as_if_it_had_not_stopped():
    random = np.random.default_rng(2)
    whole, first = (MetricComparison("reward", 0.05, bounds=(-1.0, 2.0)) for _ in range(2))
    values = [(float(random.normal(0.4, 1.0)), bool(random.integers(2))) for _ in range(101)]
    for value, side in values:
        whole.add(value, is_candidate=side, blocks=(2, 1))
    for value, side in values[:50]:
        first.add(value, is_candidate=side, blocks=(2, 1))
    second = MetricComparison("reward", 0.05, bounds=(-1.0, 2.0))
    second.restore(msgspec.json.decode(msgspec.json.encode(first.snapshot()), type=type(first.snapshot())))
    for value, side in values[50:]:
        second.add(value, is_candidate=side, blocks=(2, 1))
    assert second.metric() == whole.metric()
    assert whole.metric().pairs > 20
