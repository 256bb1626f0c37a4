"""Contract of every tracker: see `Tracker`. A case takes the function that opens a run, and the run."""

from __future__ import annotations

from collections.abc import Callable

from areal_actors.track.sender import TrackedRun, Tracker

OpenRun = Callable[[TrackedRun], Tracker]
Case = Callable[[OpenRun, TrackedRun], None]


def a_run_has_a_place(open_run: OpenRun, run: TrackedRun) -> None:
    tracker = open_run(run)
    assert tracker.place
    assert tracker.sent == {}
    tracker.finish("finished", "")


def what_was_flushed_is_known_when_the_run_is_opened_again(open_run: OpenRun, run: TrackedRun) -> None:
    tracker = open_run(run)
    for step in (1, 2, 3):
        tracker.send(step, run.started + step, {"reward_mean": step / 4, **({"loss": 0.5} if step < 3 else {})})
    tracker.flush()
    tracker.finish("interrupted", "")
    again = open_run(run)
    assert again.sent == {"reward_mean": 3, "loss": 2}
    again.send(4, run.started + 4, {"reward_mean": 1.0})
    again.flush()
    again.finish("finished", "")
    last = open_run(run)
    assert last.sent["reward_mean"] == 4
    last.finish("", "")


def two_runs_of_one_name_are_two(open_run: OpenRun, run: TrackedRun) -> None:
    first = open_run(run)
    first.send(1, run.started + 1, {"reward_mean": 0.25})
    first.flush()
    first.finish("finished", "")
    second = open_run(run._replace(id=f"{run.id}0", folder=f"{run.folder}-2"))
    assert second.sent == {}
    second.finish("ended early", "a disk was full")


CASES: tuple[Case, ...] = (
    a_run_has_a_place,
    what_was_flushed_is_known_when_the_run_is_opened_again,
    two_runs_of_one_name_are_two,
)
