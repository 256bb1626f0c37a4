"""A run with role-wise baselines that is killed goes on with the same ones, which follow from its log alone."""

from __future__ import annotations

import pytest
from support.live_run import ROOT

from areal_actors.messages import BatchFormed, RunResumed, StepCompleted, TrajectoryExported

pytestmark = pytest.mark.slow

DECAY = 0.95


def baselines_of_the_log(log):
    """The paper's update over the episodes of the recorded batches: name and value, in their order."""
    trajectories = {place: event.trajectory for place, event in log if isinstance(event, TrajectoryExported)}
    averages, baselines = {}, []
    for batch in (event for _, event in log if isinstance(event, BatchFormed)):
        for member in (member for group in batch.groups for member in group):
            trajectory = trajectories[member.sequence]
            before = averages.get(trajectory.role, 0.0)
            baselines.append({trajectory.role: pytest.approx(before, abs=1e-12)})
            averages[trajectory.role] = DECAY * before + (1 - DECAY) * trajectory.reward
    return baselines


async def test_a_killed_run_goes_on_with_the_baselines_that_its_log_has(live):
    recipe = ROOT / "recipes" / "two_player_nim.toml"
    settings = ("run=gsm8k-grpo", "steps=6", "checkpoint.every_steps=2", "algorithm.name=rae", "algorithm.group_size=1")
    run = live(*settings, "trainer.batch_size=8", recipe=recipe)
    async with run.listening():
        await run.until(StepCompleted, 3)
    run.process.kill()
    run.resume()
    assert await run.ended() == 0, run.output()
    log = await run.log()
    assert any(isinstance(event, RunResumed) for _, event in log)
    batches = [event for _, event in log if isinstance(event, BatchFormed)]
    assert [batch.step for batch in batches] == list(range(6))
    recorded = [member.baselines for batch in batches for group in batch.groups for member in group]
    assert {name for baselines in recorded for name in baselines} == {"first", "second"}
    assert recorded == baselines_of_the_log(log)
    steps = [event for _, event in log if isinstance(event, StepCompleted)]
    assert [step.step for step in steps] == list(range(1, 7))
    assert all("baseline/first" in step.metrics for step in steps)
