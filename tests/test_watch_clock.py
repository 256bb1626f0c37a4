"""Time counts only while the watcher itself could have seen what there was."""

from __future__ import annotations

import pytest

from areal_actors.supervision.liveness import WatchClock


def ticked(clock, *readings, answered=True):
    ended = []
    for reading in readings:
        if answered:
            clock.note_answer()
        ended.append(clock.tick(reading))
    return ended


def test_while_everything_answers_both_clocks_follow_the_monotonic_one():
    clock = WatchClock(100.0)
    assert ticked(clock, *(100.5 + 0.5 * n for n in range(20))) == [False] * 20
    assert clock.running == clock.watching == pytest.approx(10.0)
    assert clock.silent_seconds() == 0.0


def test_a_pause_of_the_watchers_own_process_does_not_count_and_is_known():
    clock = WatchClock(0.0)
    ticked(clock, 0.5)
    assert ticked(clock, 25.5) == [True]
    assert clock.paused == 25.0
    assert clock.watching == 2.5
    assert ticked(clock, 26.0) == [False]
    assert clock.paused == 0.0


def test_without_answers_of_the_bus_nothing_is_late_and_the_bus_is_silent():
    clock = WatchClock(0.0)
    ticked(clock, 0.5)
    ticked(clock, *(1.0 + 0.5 * n for n in range(40)), answered=False)
    assert clock.watching == pytest.approx(0.5)
    assert clock.silent_seconds() == pytest.approx(20.0)
    assert ticked(clock, 21.0) == [True], "the gap has ended"
    assert clock.silent_seconds() == 0.0


def test_a_watcher_that_was_paused_does_not_take_the_bus_for_silent():
    clock = WatchClock(0.0)
    ticked(clock, 0.5)
    ticked(clock, 1000.0, answered=False)
    assert clock.silent_seconds() <= 2.0


def test_a_clock_that_goes_back_is_one_that_stands():
    clock = WatchClock(10.0)
    ticked(clock, 5.0)
    assert clock.watching == 0.0
