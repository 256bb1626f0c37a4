"""The live view of a run that it joins late, and of one that stands still."""

from __future__ import annotations

from support import story
from test_monitor import shown, unfinished_run, view_of

from areal_actors.messages import RunStalled, TrajectoryDropped


def test_the_speeds_of_a_monitor_that_attaches_late_begin_when_it_does():
    throughputs = [story.throughput("generation", 390 + n, 1.0, actor="inference_worker-0") for n in range(10)]
    text = shown(view_of(*unfinished_run(), *throughputs, story.gate()))
    assert "generation 1,000 tokens/s, busy 100%" in text, "it was not idle in the 20 s before"


def test_trajectories_that_are_sampled_and_dropped_do_not_end_a_stall():
    stall = story.sealed(RunStalled(sentence="no step was trained for 61 s", seconds=61.0), 90)
    view = view_of(
        story.sealed(story.STARTED),
        stall,
        story.sealed(TrajectoryDropped(episode="1.0", group="1", reason="stale"), 91),
    )
    view.receive(story.exported())
    assert "stalled no step was trained for 61 s" in shown(view)
    view.receive(story.stepped(1))
    assert "stalled" not in shown(view)
