"""A run in a genuine verifiers environment: the embedded model learns it."""

from __future__ import annotations

import pytest
from support.environment_harness import PYTHON
from support.live_run import ROOT

from areal_actors.messages import BatchFormed, EpisodeAbandoned, EvaluationCompleted, StepCompleted, TrajectoryExported

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]
STEPS, EPISODES = 12, 16 * 8
SETTINGS = (
    str(ROOT / "recipes" / "verifiers.toml"),
    *("run=gsm8k-grpo", "profile=embedded", f"steps={STEPS}", "evaluation.every_steps=0", "task.timeout_seconds=600"),
)


async def test_the_embedded_model_learns_a_verifiers_environment(live):
    if not (ROOT / PYTHON).exists():
        pytest.skip("`just environments verifiers` makes the interpreter that this needs")
    run = live(*SETTINGS, small=False)
    assert await run.ended() == 0, run.output()
    assert run.processes_left() == []
    log = [event for _, event in await run.log()]
    before, *_, after = [event for event in log if isinstance(event, EvaluationCompleted) and event.mode == "greedy"]
    assert (before.failed, after.failed) == (0, 0)
    assert after.accuracy > before.accuracy + 0.3
    assert after.reward_metrics["correct"] == after.reward_mean == after.accuracy
    assert after.reward_metrics["shows_work"] > before.reward_metrics["shows_work"]
    assert [event for event in log if isinstance(event, EpisodeAbandoned)] == []
    steps = [event for event in log if isinstance(event, StepCompleted)]
    assert len(steps) == STEPS
    assert "reward/shows_work" in steps[-1].metrics
    exported = {event.trajectory.episode for event in log if isinstance(event, TrajectoryExported)}
    trained = {
        member.episode for event in log if isinstance(event, BatchFormed) for group in event.groups for member in group
    }
    assert trained <= exported
    assert len(trained) == STEPS * EPISODES
    listed = (run.folder / "tasks" / "tasks.jsonl").read_text().splitlines()
    assert len(listed) == 500
