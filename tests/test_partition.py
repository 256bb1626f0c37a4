"""Parts of items: every item once, within the budget or of nearly equal weight, and always the same."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_actors.training.packing.partition import first_fit_decreasing, greedy_split, karmarkar_karp

WEIGHTS = st.lists(st.integers(0, 5000), max_size=60)
COUNTS = st.integers(1, 9)


def spread(weights, parts):
    totals = [sum(weights[index] for index in part) for part in parts]
    return max(totals) - min(totals)


@given(WEIGHTS, st.integers(1, 8000))
def test_first_fit_has_every_item_once_and_keeps_to_the_budget(weights, budget):
    parts = first_fit_decreasing(weights, budget)
    assert sorted(index for part in parts for index in part) == list(range(len(weights)))
    for part in parts:
        assert part
        assert sum(weights[index] for index in part) <= budget or len([index for index in part if weights[index]]) == 1


@given(WEIGHTS, st.integers(1, 8000))
def test_first_fit_never_leaves_two_parts_that_would_fit_into_one(weights, budget):
    totals = sorted(sum(weights[index] for index in part) for part in first_fit_decreasing(weights, budget))
    assert len(totals) < 2 or totals[0] + totals[1] > budget


@pytest.mark.parametrize("split", [greedy_split, karmarkar_karp])
@given(weights=WEIGHTS, count=COUNTS)
def test_a_split_has_every_item_once_in_as_many_parts_as_asked(split, weights, count):
    parts = split(weights, count)
    assert len(parts) == count
    assert sorted(index for part in parts for index in part) == list(range(len(weights)))


@pytest.mark.parametrize("split", [greedy_split, karmarkar_karp])
@given(weights=WEIGHTS.filter(bool), count=COUNTS)
def test_parts_never_differ_by_more_than_the_heaviest_item(split, weights, count):
    assert spread(weights, split(weights, count)) <= max(weights)


@given(WEIGHTS, COUNTS)
def test_the_same_weights_are_split_the_same_way(weights, count):
    assert karmarkar_karp(weights, count) == karmarkar_karp(list(weights), count)
    assert greedy_split(weights, count) == greedy_split(list(weights), count)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_differencing_is_no_less_even_than_greed_on_average(count):
    draw = np.random.default_rng(0)
    differencing, greed = [], []
    for _ in range(60):
        weights = draw.integers(20, 2000, 40).tolist()
        differencing.append(spread(weights, karmarkar_karp(weights, count)))
        greed.append(spread(weights, greedy_split(weights, count)))
    assert np.mean(differencing) <= np.mean(greed)


def test_differencing_finds_the_split_of_the_paper():
    weights = [8, 7, 6, 5, 4]
    assert spread(weights, karmarkar_karp(weights, 2)) == 2
    assert spread(weights, greedy_split(weights, 2)) == 4
