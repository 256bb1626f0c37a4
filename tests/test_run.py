"""The whole job, for real: processes, nats-server, gateway, engines, from the command line to the checkpoint."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
from support.live_run import ROOT
from transformers import AutoModelForCausalLM, AutoTokenizer

from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import (
    ActorFailed,
    BatchFormed,
    CapacityGranted,
    CheckpointCommitted,
    EngineMismatch,
    EpisodeAbandoned,
    EvaluationCompleted,
    Generated,
    RunFinished,
    StepCompleted,
    TrajectoryDropped,
    TrajectoryExported,
    WeightsPublished,
)
from areal_actors.processes.cpu_actors import CPU_ACTORS
from areal_actors.processes.fold_actors import BuildContext
from areal_actors.replay.tape import TapeDifference, replay
from areal_actors.sequences.build import sequences_of
from areal_actors.sequences.step_metrics import sequences_checksum
from areal_actors.weights.folders import shared_memory_path
from areal_bus.recorded import read_tape

pytestmark = pytest.mark.slow

GSM8K = Path(os.environ.get("AREAL_GSM8K", ROOT.parent / "shared" / "data" / "gsm8k"))


def checked_against_the_engine(log, tapes: Path) -> int:
    """Every row that the loss was given holds exactly what the engine sampled; returns how many tokens that were."""
    sampled = set()
    for tape in tapes.glob("inference_worker-*.tape"):
        for entry in read_tape(tape):
            if entry.kind == "emitted" and entry.envelope.subject == Generated.subject:
                columns = entry.envelope.open(Generated).columns
                sampled.add((columns.token_ids, columns.logprobs, columns.versions))
    trajectories = {sequence: event.trajectory for sequence, event in log if isinstance(event, TrajectoryExported)}
    checksums = {event.step: event.sequences_checksum for _, event in log if isinstance(event, StepCompleted)}
    tokens = 0
    for batch in (event for _, event in log if isinstance(event, BatchFormed)):
        rows = []
        for number, group in enumerate(batch.groups):
            for member in group:
                trajectory = trajectories[member.sequence]
                for turn in trajectory.interactions:
                    columns = turn.completion
                    assert (columns.token_ids, columns.logprobs, columns.versions) in sampled
                    tokens += len(columns)
                rows += sequences_of(trajectory, number, batch.oldest_version)
        assert sequences_checksum(rows) == checksums[batch.step + 1]
    return tokens


async def differences_on_replay(folder: RunFolder, kind: str) -> list[TapeDifference]:
    """Feed a real run's tape to a fresh actor, built as the run built it."""
    recipe, instance = folder.recipe(), f"{kind}-0"
    actor = CPU_ACTORS[kind](BuildContext(recipe=recipe, folder=folder, instance=instance))
    tape = list(read_tape(folder.path / "tapes" / f"{instance}.1.tape"))
    assert any(entry.kind == "received" for entry in tape)
    return await replay(actor, tape, instance=instance, seed=recipe.seed)


@pytest.mark.long
async def test_a_run_ends_with_everything_in_its_place(live):
    run = live("steps=3", "record_actor_io=true")
    assert await run.ended() == 0, run.output()
    assert run.processes_left() == []
    assert not shared_memory_path("gsm8k-grpo", run.folder).exists()
    log = await run.log()
    steps = [event for _, event in log if isinstance(event, StepCompleted)]
    assert [event.step for event in steps] == [1, 2, 3]
    assert all(
        event.metrics["train_infer_logprob_diff_max"] < 1e-4 and event.metrics["parity_tokens"] > 0 for event in steps
    )
    assert all(
        event.metrics["mismatch_kl_k3/inference_worker-0"] < 1e-6 and event.metrics["vetoed_frac"] == 0
        for event in steps
    )
    assert not [event for _, event in log if isinstance(event, EngineMismatch)]
    assert [event for _, event in log if isinstance(event, RunFinished)] == [RunFinished(steps=3)]
    assert {(event.weight_version, event.mode) for _, event in log if isinstance(event, EvaluationCompleted)} == {
        (0, "sampled"),
        (0, "greedy"),
        (3, "sampled"),
        (3, "greedy"),
    }
    assert checked_against_the_engine(log, run.folder / "tapes") > 0
    for kind in ("staleness_gate", "task_source", "batcher", "evaluator", "checkpointer", "metrics"):
        assert await differences_on_replay(RunFolder(run.folder), kind) == []
    checkpoint = run.folder / "checkpoints" / "step-3"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(checkpoint), AutoTokenizer.from_pretrained(checkpoint)
    assert model.generate(**tokenizer("1 + 1 =", return_tensors="pt"), max_new_tokens=2).shape[-1] > 2
    assert (run.folder / "reward.png").read_bytes().startswith(b"\x89PNG")
    kinds = {json.loads(line)["kind"] for line in (run.folder / "metrics.jsonl").read_text().splitlines()}
    assert {
        "run.started",
        "step.completed",
        "evaluation.completed",
        "checkpoint.committed",
        "engine.throughput",
    } <= kinds


async def test_any_process_may_be_killed_and_the_final_step_count_is_exact(live):
    run = live("steps=24", "checkpoint.every_steps=4")
    processes = ["rollout_worker", "inference_worker", "trainer", "reward_worker", "gateway", "control"]
    async with run.listening():
        for number, process in enumerate(processes):
            await run.until(StepCompleted, 1 + 2 * number)
            run.kill(process)
    assert await run.ended() == 0, run.output()
    log = await run.log()
    failures = [event for _, event in log if isinstance(event, ActorFailed)]
    assert {event.process for event in failures} == set(processes)
    assert all("SIGKILL" in event.reason for event in failures)
    assert [event.step for _, event in log if isinstance(event, StepCompleted)] == list(range(1, 25))
    batches = [event for _, event in log if isinstance(event, BatchFormed)]
    members = [member.episode for batch in batches for group in batch.groups for member in group]
    groups = [number for batch in batches for number in batch.group_numbers()]
    assert len(members) == len(set(members))
    assert len(groups) == len(set(groups)) == 24 * 4
    assert run.processes_left() == []


@pytest.mark.long
async def test_with_staleness_zero_every_trained_token_has_the_version_of_its_step(live):
    run = live("steps=3", "staleness_gate.max_staleness=0", "evaluation.tasks=0")
    assert await run.ended() == 0, run.output()
    steps = [event for _, event in await run.log() if isinstance(event, StepCompleted)]
    assert len(steps) == 3
    assert all(event.metrics["token_staleness_max"] == 0 and event.metrics["masked_frac"] == 0 for event in steps)


@pytest.mark.long
@pytest.mark.parametrize("policy", ["keep", "drop", "wait"])
async def test_the_other_exit_policies_train_too(live, policy):
    run = live("steps=4", f"batcher.exit_policy={policy}", "staleness_gate.max_staleness=1", "evaluation.tasks=0")
    assert await run.ended() == 0, run.output()
    events = [event for _, event in await run.log()]
    steps = [event for event in events if isinstance(event, StepCompleted)]
    assert len(steps) == 4
    if policy != "wait" or not _is_behind(events):
        assert all(event.metrics["masked_frac"] == 0 for event in steps)
    if policy != "keep":
        assert all(event.metrics["token_staleness_max"] <= 1 for event in steps)


def _is_behind(events):
    """True if an engine sampled for a group with weights older than those at its grant, which it had not yet loaded."""
    granted = {
        number: event.weight_version
        for event in events
        if isinstance(event, CapacityGranted)
        for number in range(event.first_group, event.first_group + event.groups)
    }
    return any(
        call.completion.versions_array().min() < granted[int(event.trajectory.group)]
        for event in events
        if isinstance(event, TrajectoryExported)
        for call in event.trajectory.interactions
    )


@pytest.mark.long
async def test_every_group_of_the_surplus_ends_by_name(live):
    run = live("steps=3", "staleness_gate.surplus_groups=8", "evaluation.tasks=0")
    assert await run.ended() == 0, run.output()
    events = [event for _, event in await run.log()]
    granted = sum(event.groups for event in events if isinstance(event, CapacityGranted))
    trained = {number for event in events if isinstance(event, BatchFormed) for number in event.group_numbers()}
    abandoned = [event for event in events if isinstance(event, EpisodeAbandoned)]
    dropped = [event for event in events if isinstance(event, TrajectoryDropped)]
    assert {event.reason for event in (*abandoned, *dropped)} == {"surplus"}
    surplus = {int(event.work.group) for event in abandoned} | {int(event.group) for event in dropped}
    assert trained | surplus == set(range(granted))
    assert not trained & surplus


@pytest.mark.long
@pytest.mark.skipif(not GSM8K.exists(), reason="the real GSM8K is not here; AREAL_GSM8K names its folder")
async def test_real_gsm8k_rows_run_score_and_train(live):
    files = (f"task.dataset={GSM8K / 'train.jsonl'}", f"task.held_out={GSM8K / 'test.jsonl'}")
    run = live("steps=2", *files)
    assert await run.ended() == 0, run.output()
    log = await run.log()
    assert [event.step for _, event in log if isinstance(event, StepCompleted)] == [1, 2]
    evaluated = [event for _, event in log if isinstance(event, EvaluationCompleted)]
    assert {event.failed for event in evaluated} == {0}
    assert len(evaluated[0].samples[0]["task"]["question"]) > 40


@pytest.mark.long
async def test_an_interrupted_run_saves_a_checkpoint_and_leaves_no_process(live):
    run = live("steps=500", "evaluation.tasks=0")
    async with run.listening():
        await run.until(StepCompleted, 2)
        os.kill(run.process.pid, signal.SIGINT)
        assert await run.ended() == 130, run.output()
    assert "Ctrl-C: a checkpoint is saved, then the run ends; Ctrl-C again ends it without one" in run.output()
    log = await run.log()
    assert not [event for _, event in log if isinstance(event, EpisodeAbandoned)], (
        "nobody sees what he uses fail because the run is over"
    )
    saved = [event for _, event in log if isinstance(event, CheckpointCommitted)]
    assert len(saved) == 1
    assert AutoModelForCausalLM.from_pretrained(run.folder / saved[0].folder) is not None
    assert int((run.folder / saved[0].folder / "cursor").read_text()) == saved[0].cursor > 0
    assert run.processes_left() == []


@pytest.mark.long
async def test_when_the_command_is_killed_its_processes_end_with_it(live):
    run = live("steps=500", "evaluation.tasks=0")
    async with run.listening():
        await run.until(WeightsPublished, 1)
    run.process.kill()
    run.process.wait()
    for _ in range(100):
        if not (left := run.processes_left()):
            break
        await asyncio.sleep(0.1)
    assert left == []


AGENTS = {
    "raises": ("    raise ValueError('no idea')", "agent", "ValueError: no idea"),
    "nan": ("    return float('nan')", "agent", "nan"),
    "silent": ("    return 1.0", "agent", "no model call"),
    "hangs": ("    import asyncio; await asyncio.sleep(1000)", "timeout", "did not return within 1 s"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", AGENTS)
async def test_an_agent_that_fails_ends_the_run_with_its_reason_and_trains_nothing(live, tmp_path, name):
    body, reason, words = AGENTS[name]
    agent = tmp_path / "agent.py"
    agent.write_text(f"class Agent:\n  async def run(self, task, *, base_url, api_key):\n{body}\n")
    run = live(
        "steps=2",
        f"task.agent={agent}:Agent",
        "task.timeout_seconds=1",
        "task.retries=1",
        "watchdog.max_failures_in_a_row=8",
    )
    assert await run.ended() == 1
    assert words in run.output()
    log = await run.log()
    abandoned = [event for _, event in log if isinstance(event, EpisodeAbandoned)]
    assert {event.reason for event in abandoned} == {reason}
    assert not [event for _, event in log if isinstance(event, TrajectoryExported | BatchFormed)]
    assert run.processes_left() == []


REWARDS = {
    "raises": ("raise KeyError('answer')", "KeyError"),
    "hangs": ("while True: pass", "killed"),
    "nan": ("return float('nan')", "nan"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", REWARDS)
async def test_a_reward_function_that_fails_ends_the_run_with_its_reason_and_trains_nothing(live, tmp_path, name):
    body, words = REWARDS[name]
    reward = tmp_path / "reward.py"
    reward.write_text(f"def score(task, output):\n    {body}\n")
    run = live(
        *("steps=2", f"task.reward={reward}:score", "task.reward_timeout_seconds=0.5", "task.retries=0"),
        *("watchdog.max_failures_in_a_row=4", "evaluation.tasks=4", "actors.reward_worker.concurrency=4"),
    )
    assert await run.ended() == 1
    assert words in run.output()
    log = await run.log()
    assert {event.reason for _, event in log if isinstance(event, EpisodeAbandoned)} == {"reward"}
    assert not [event for _, event in log if isinstance(event, TrajectoryExported | BatchFormed)]
    assert run.processes_left() == []
