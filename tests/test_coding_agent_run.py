"""An unmodified coding agent is trained: Codex CLI from npm, in processes of its own, on the embedded model."""

from __future__ import annotations

import os
from contextlib import suppress

import psutil
import pytest
from support.coding_agents import Codex
from support.coding_harness import Programs
from support.live_run import ROOT

from areal_actors.core.agent_host.agent_loader import load
from areal_actors.messages import BatchFormed, EpisodeAbandoned, EvaluationCompleted, StepCompleted, TrajectoryExported
from areal_actors.tasks.repositories import rows

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
RECIPE = ROOT / "recipes" / "coding_agent.toml"
STEPS, TASKS = 10, 24
LARGEST_DIFFERENCE = 1e-3
"""Between the engine's log-probability of a sampled token and the trainer's."""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Codex CLI, as npm installs it."""
    return Programs(tmp_path_factory.mktemp("codex")).of(Codex)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Folder of temporary files of this process and those that it starts."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def running(program):
    """Processes of a program that still live."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if str(program.parents[1]) in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


async def test_the_embedded_model_learns_to_read_before_it_edits(live, program, temporary):
    settings = (
        "run=gsm8k-grpo",
        "profile=embedded",
        f"steps={STEPS}",
        f"evaluation.tasks={TASKS}",
        f"task.agent_options.program={program}",
    )
    run = live(*settings, "warm_start.tail_shortcut_fraction=0.7", recipe=RECIPE, small=False)
    assert await run.ended() == 0, run.output()
    assert run.processes_left() == []
    assert running(program) == []
    assert list(temporary.glob("areal-repository-*")) == []
    log = [event for _, event in await run.log()]

    before, *_, after = [event for event in log if isinstance(event, EvaluationCompleted) and event.mode == "sampled"]
    assert after.accuracy > before.accuracy + 0.2
    assert after.reward_metrics["read"] > before.reward_metrics["read"] + 0.3
    assert after.reward_metrics["commands"] > before.reward_metrics["commands"]

    steps = [event for event in log if isinstance(event, StepCompleted)]
    assert len(steps) == STEPS
    assert max(step.metrics["train_infer_logprob_diff_max"] for step in steps) < LARGEST_DIFFERENCE

    exported = {event.trajectory.episode for event in log if isinstance(event, TrajectoryExported)}
    trained = {
        member.episode for event in log if isinstance(event, BatchFormed) for group in event.groups for member in group
    }
    assert trained <= exported
    abandoned = [event for event in log if isinstance(event, EpisodeAbandoned)]
    assert all(event.reason == "agent" and event.detail for event in abandoned)
    assert len(abandoned) < 0.1 * len(exported)


async def test_a_call_that_fails_is_a_failure_of_the_agent_and_no_reward(program, temporary):
    agent = load("agents/coding_agent.py:CodingAgent", ROOT)(program=os.fspath(program))
    with pytest.raises(RuntimeError, match="ended with status 1: "):
        await agent.run(rows("test", 1, seed=0)[0], base_url="http://127.0.0.1:9/v1", api_key="none")
    assert running(program) == []
    assert list(temporary.glob("areal-repository-*")) == []
