"""A run whose policies share one genuine inference server, which is killed."""

from __future__ import annotations

import asyncio
import re
import signal

import pytest
from support.live_run import ROOT
from support.server_processes import server_processes, signal_all
from test_policies_run import audit_of, events_of, policy_folder

from areal_actors.folder.run_folder import RunFolder
from areal_actors.generation.engines import server_engines
from areal_actors.messages import ActorFailed, EngineLost, StepCompleted, WeightsLoaded, WeightsPublished

ADAPTER = re.compile(r"(policy-worker\.|)\bv\d+\.([0-9a-f]{8})\.\d")
"""Owner and engine in the name of an adapter."""
EXACT = 1e-4
STEPS = 8

pytestmark = [pytest.mark.long, pytest.mark.timeout(1900)]


@pytest.mark.parametrize("engine", server_engines())
async def test_two_policies_train_on_one_server_that_is_killed_each_its_own_tokens(live, engine: str, capsys) -> None:
    if not (ROOT / ".environments" / engine / "bin" / "python").exists():
        pytest.skip(f"`just environments {engine}` makes the environment")
    run = live(
        f"steps={STEPS}",
        f"generation.engine={engine}",
        f"task.agent={ROOT}/tests/support/two_policies.py:TwoPolicies",
        *("sampling.max_tokens=16", "evaluation.tasks=4", "trainer.lora.rank=8", "policies.worker.engine=shared"),
        *("policies.worker.settings.trainer.lora.rank=4", "policies.worker.settings.trainer.optimizer.lr=3e-3"),
    )
    worker = policy_folder(run, "worker")
    async with run.listening():
        await run.until(StepCompleted, 2, seconds=900)
        signal_all(server_processes(run.process.pid), signal.SIGKILL)
    assert await run.ended() == 0, run.output()
    logs = {"main": [event for _, event in await run.log()], "worker": await events_of(worker)}
    for folder in (RunFolder(run.folder), worker):
        assert await asyncio.to_thread(audit_of, folder) == 0, capsys.readouterr().out
    served = set(ADAPTER.findall((run.folder / "logs" / f"{engine}-0.log").read_text()))
    for prefix in ("", "policy-worker."):
        assert len({life for owner, life in served if owner == prefix}) == 2, "both loaded adapters into both servers"
    assert not (worker.logs / f"{engine}-0.log").exists(), "the policy has no server of its own"
    for log in logs.values():
        steps = [event for event in log if isinstance(event, StepCompleted)]
        assert [event.step for event in steps] == list(range(1, len(steps) + 1))
        assert max(event.metrics["train_infer_logprob_diff_max"] for event in steps) < EXACT
        # A server that is gone while weights are loaded is started again without a loss of completions.
        assert {event.worker for event in log if isinstance(event, EngineLost)} <= {"inference_worker-0"}
        published = {
            event.weight_version: event.location.checksum for event in log if isinstance(event, WeightsPublished)
        }
        loaded = [event for event in log if isinstance(event, WeightsLoaded)]
        assert {(event.channel, event.checksum == published[event.weight_version]) for event in loaded} == {
            ("adapter", True)
        }
    assert not [event for event in logs["main"] if isinstance(event, ActorFailed)]
    taken = {name: sum(isinstance(event, StepCompleted) for event in log) for name, log in logs.items()}
    assert taken["main"] == STEPS
    assert taken["worker"] >= STEPS - 3, "its batches fill with the same episodes"
    assert run.processes_left() == []
