from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from areal_actors.sessions.capacity import Capacity


def start(capacity, task, now=0.0):
    seat = capacity.next_seat(task)
    if seat is not None:
        capacity.take(seat, now, reserved=True)
    return seat


def test_a_task_fills_its_group_before_it_begins_another():
    capacity = Capacity(2)
    capacity.grant(0, 2)
    seats = [start(capacity, task) for task in ("a", "b", "a", "b")]
    assert [(seat.session, seat.episode) for seat in seats] == [("a-0", "0.0"), ("b-0", "1.0"), ("a-1", "0.1"), ("b-1", "1.1")]
    assert start(capacity, "a") is None
    capacity.grant(2, 1)
    assert start(capacity, "a").episode == "2.0"


def test_what_was_granted_twice_is_granted_once():
    capacity = Capacity(1)
    capacity.grant(0, 2)
    capacity.grant(0, 2)
    assert capacity.room(0.0) == 2


def test_reservations_take_room_until_they_are_used_or_run_out():
    capacity = Capacity(2)
    capacity.grant(0, 1)
    assert [capacity.reserve(0.0, 10.0) for _ in range(3)] == [True, True, False]
    start(capacity, "a")
    assert capacity.room(0.0) == 0
    assert capacity.room(10.5) == 1


def test_where_the_run_s_own_workers_take_the_groups_nobody_else_starts():
    capacity = Capacity(0)
    capacity.grant(0, 5)
    assert (capacity.room(0.0), capacity.next_seat("a")) == (0, None)


def test_slots_come_back_when_sessions_end_once_each():
    capacity = Capacity(8, slots=2)
    first = start(capacity, "a")
    start(capacity, "b")
    assert start(capacity, "c") is None
    capacity.ended(first.episode)
    capacity.ended(first.episode)
    assert start(capacity, "c").session == "c-0"
    assert start(capacity, "d") is None


def test_places_that_nobody_takes_are_missing_after_a_while_and_their_end_closes_the_group():
    capacity = Capacity(3)
    capacity.grant(0, 2)
    start(capacity, "a", now=5.0)
    assert capacity.missing(14.0, 10.0) == []
    late = capacity.missing(15.5, 10.0)
    assert [seat.episode for seat in late] == ["0.1", "0.2"]
    for seat in late:
        capacity.ended(seat.episode)
    assert (capacity.missing(99.0, 10.0), start(capacity, "a").episode) == ([], "1.0")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=40), st.integers(1, 3), st.randoms(use_true_random=False))
def test_the_log_folds_to_the_same_table_in_whatever_order_starts_were_written(happenings, group_size, random):
    live = Capacity(group_size)
    live.grant(0, 6)
    seats, ended = [], []
    for task, ends in happenings:
        if (seat := start(live, task)) is not None:
            seats.append(seat)
            if ends:
                live.ended(seat.episode)
                ended.append(seat.episode)
    assert len({seat.episode for seat in seats}) == len({seat.session for seat in seats}) == len(seats)
    folded = Capacity(group_size)
    folded.grant(0, 6)
    random.shuffle(seats)
    for seat in seats:
        folded.take(seat, 0.0)
    for episode in ended:
        folded.ended(episode)
    assert (folded.room(0.0), folded.running, folded.indexes) == (live.room(0.0), live.running, live.indexes)
    assert [folded.next_seat(task) for task in "abcd"] == [live.next_seat(task) for task in "abcd"]
