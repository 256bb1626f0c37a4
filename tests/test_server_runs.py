"""Runs on genuine SGLang and vLLM servers, which are killed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support.server_processes import server_processes, signal_all

from areal_actors.generation.engines import server_engines
from areal_actors.messages import (
    ActorFailed,
    EngineLost,
    StepCompleted,
    TrajectoryExported,
    WeightsLoaded,
    WeightsPublished,
    WeightTransferRefused,
)

ROOT = Path(__file__).parent.parent
EXACT = 1e-4

pytestmark = pytest.mark.timeout(1900)


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "weights"),
    [*((engine, "folder") for engine in server_engines()), ("sglang", "delta"), ("vllm", "broadcast")],
)
async def test_a_run_whose_server_is_killed_takes_every_step_once_and_trains_tokens_of_several_versions(
    live, engine: str, weights: str
) -> None:
    if not (ROOT / ".environments" / engine / "bin" / "python").exists():
        pytest.skip(f"`just environments {engine}` makes the environment")
    run = live(
        "steps=24", f"generation.engine={engine}", "sampling.max_tokens=64", f"generation.server.weights={weights}"
    )
    async with run.listening():
        await run.until(StepCompleted, 4, seconds=900)
        signal_all(server_processes(run.process.pid), signal.SIGKILL)
    assert await run.ended() == 0, run.output()
    log = [event for _, event in await run.log()]
    assert [event.step for event in log if isinstance(event, StepCompleted)] == list(range(1, 25))
    assert [event.worker for event in log if isinstance(event, EngineLost)] == ["inference_worker-0"]
    assert not [event for event in log if isinstance(event, ActorFailed)]
    parities = [event.metrics["train_infer_logprob_diff_max"] for event in log if isinstance(event, StepCompleted)]
    assert max(parities) < EXACT
    calls = [
        turn.completion
        for event in log
        if isinstance(event, TrajectoryExported)
        for turn in event.trajectory.interactions
    ]
    assert any(len(columns.versions) > 1 for columns in calls), "weights arrived in mid-completion"
    loaded = [event for event in log if isinstance(event, WeightsLoaded)]
    assert {weights} <= {event.channel for event in loaded} <= {weights, "broadcast"}
    published = {event.weight_version: event.location.checksum for event in log if isinstance(event, WeightsPublished)}
    assert all(event.checksum == published[event.weight_version] for event in loaded)
    assert not [event for event in log if isinstance(event, WeightTransferRefused)]
    assert run.processes_left() == []
