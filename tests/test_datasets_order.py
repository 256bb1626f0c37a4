from __future__ import annotations

import pytest

from areal_actors.tasks.order import Order, permutation


def test_each_epoch_draws_every_row_once_in_an_order_of_its_own():
    order = Order(length=50, seed=3)
    epochs = [order.rows(50 * epoch, 50) for epoch in range(4)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len(set(epochs)) == 4


def test_a_draw_depends_on_seed_and_number_alone_and_may_begin_anywhere():
    drawn = Order(length=7, seed=1).rows(0, 40)
    permutation.cache_clear()
    assert Order(length=7, seed=1).rows(19, 21) == drawn[19:]
    assert Order(length=7, seed=2).rows(0, 40) != drawn
    assert Order(length=8, seed=1).rows(0, 40) != drawn


def test_the_order_is_the_same_on_every_machine_and_in_every_version():
    assert Order(length=6, seed=0).rows(0, 12) == (2, 5, 1, 3, 4, 0, 1, 0, 3, 5, 2, 4)


def test_without_a_seed_rows_come_as_they_stand():
    assert Order(length=3).rows(0, 7) == (0, 1, 2, 0, 1, 2, 0)


@pytest.mark.parametrize("seed", range(3))
def test_no_place_of_an_epoch_favours_a_row(seed):
    """Over 2,000 epochs of 5 rows each row is first about 400 times; the standard deviation is 18."""
    first = [Order(length=5, seed=seed).row(5 * epoch) for epoch in range(2000)]
    assert all(abs(first.count(row) - 400) < 90 for row in range(5))
