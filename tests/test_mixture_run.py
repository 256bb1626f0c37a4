"""Live runs that draw from two sources: each learns what it plays, and kills change no draw."""

from __future__ import annotations

from collections import Counter

import pytest
from support.live_run import ROOT

from areal_actors.messages import (
    EpisodeScored,
    EvaluationCompleted,
    PoolsMeasured,
    StepCompleted,
    TrajectoryExported,
)
from areal_actors.tasks.mixture.source_order import SourceOrder

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]
RECIPE = ROOT / "recipes" / "mixture.toml"
STEPS = 6


def sources_of(log):
    """Source of every trained group, from its trajectories."""
    return {
        int(event.trajectory.group): event.trajectory.source for event in log if isinstance(event, TrajectoryExported)
    }


async def test_sources_are_drawn_by_weight_and_measured_apart(live):
    run = live("run=gsm8k-grpo", f"steps={STEPS}", recipe=RECIPE)
    async with run.listening():
        await run.until(StepCompleted, 2)
        run.kill("control")
        assert await run.ended() == 0, run.output()
    log = [event for _, event in await run.log()]
    sources, order = sources_of(log), SourceOrder({"sums": 1.0, "tools": 1.0}, 0)
    assert sources == {number: order.draw(number).source for number in sources}
    counts = Counter(sources.values())
    assert abs(counts["sums"] - counts["tools"]) <= 2
    last = [event for event in log if isinstance(event, EvaluationCompleted)][-1]
    by_source = [last.reward_metrics["source/sums"], last.reward_metrics["source/tools"]]
    assert last.reward_mean == pytest.approx(sum(by_source) / 2)
    steps = [event for event in log if isinstance(event, StepCompleted)]
    assert all(step.metrics["source/sums/groups"] + step.metrics["source/tools/groups"] == 4 for step in steps)
    short = {event.work.sampling.max_tokens for event in log if isinstance(event, EpisodeScored)}
    assert short == {64, 96}


async def test_a_killed_task_source_draws_by_difficulty_as_a_whole_one_would(live):
    run = live(f"steps={STEPS}", "task.curriculum.return_after=4", "staleness_gate.max_staleness=0")
    async with run.listening():
        await run.until(PoolsMeasured, 2)
        run.kill("control")
        assert await run.ended() == 0, run.output()
    log = [event for _, event in await run.log()]
    tasks = {event.trajectory.group: set() for event in log if isinstance(event, TrajectoryExported)}
    for event in log:
        if isinstance(event, TrajectoryExported):
            tasks[event.trajectory.group].add(event.trajectory.task)
    assert all(len(names) == 1 for names in tasks.values()), "the members of a group have one task"
    measured = [event for event in log if isinstance(event, PoolsMeasured)]
    assert [event.step for event in measured] == list(range(1, STEPS + 1))
    assert len({sum(event.pools[""].values()) for event in measured}) == 1
