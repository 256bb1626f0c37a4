"""The verdict on what limits a run follows from its measured load; what has no effect is not advised."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import msgspec
import pytest

from areal_actors.core.devices import CudaDevices
from areal_actors.messages import EventLoopBlocked, LoadMeasured, RoleLoad
from areal_actors.recipe.load import load as load_recipe
from areal_actors.scaling.limit import find_limit
from areal_actors.scaling.load import LoadFold
from areal_actors.scaling.machine_usage import MachineUsage
from areal_actors.supervision.machine_meter import MachineMeter

MAIN = Path(__file__).parent.parent / "recipes/gsm8k_grpo.toml"
NO_CUDA = CudaDevices(0, "none")
PROCESSES = {"trainer": 0.3, "inference_worker": 0.3, "rollout_worker": 0.1, "gateway": 0.1, "control": 0.05}


def recipe(*words):
    return load_recipe([MAIN], ["profile=embedded", "task.dataset=arithmetic", *words], NO_CUDA).recipe


def load(waits=0.5, *, calls=8.0, scores=0.0, queued=0.0, episodes=10.0, cores=2, used=1.0, **fields):
    roles = {
        "inference_worker": RoleLoad(workers=1, slots=100, busy=calls, waiting=queued),
        "reward_worker": RoleLoad(workers=1, slots=1, busy=min(scores, 1.0), waiting=max(scores - 1.0, 0.0)),
        "rollout_worker": RoleLoad(workers=1, slots=100, busy=episodes, waiting=0.0, cpu=0.3),
    }
    usual = {"processes": PROCESSES, "run_cpu": 1.0, "machine_cpu": used, "cores": cores, "allowed": 100}
    return LoadMeasured(seconds=100.0, trainer_waits=waits, episodes=episodes, roles=roles, **{**usual, **fields})


def busy_with(process):
    return {"used": 2.0, "run_cpu": 1.8, "processes": {**PROCESSES, process: 1.3}}


BLOCK = EventLoopBlocked(seconds=40.0, line="agent.py:7", innermost="ssl.py:713 in load_default_certs")


@pytest.mark.parametrize(
    ("measured", "blocked", "words", "sentence", "advice"),
    [
        (load(0.05), [], [], "Training limits", "more threads"),
        (load(0.05, used=2.0), [], [], "Training limits", "fewer tokens a step"),
        (load(0.05, publishes=0.4), [], [], "Publishing weights limits", "bfloat16"),
        (load(), [], [], "The inference engine limits", "actors.inference_worker.count = 2"),
        (load(queued=30.0), [], [], "The inference engine limits", "generation.max_num_seqs"),
        (load(**busy_with("inference_worker")), [], [], "The inference engine limits", "shorter answers"),
        (load(calls=2.0), [], [], "The agent limits", "less work between"),
        (load(calls=2.0, bounds={"staleness": 0.9}), [], [], "The agent limits", "max_staleness = 2"),
        (load(**busy_with("rollout_worker")), [], [], "The agent limits", "less work between"),
        (load(), [BLOCK], [], "The agent limits", "agent.py:7 (ssl.py:713 in load_default_certs)"),
        (load(calls=1.0, scores=8.0), [], [], "Rewards limit", "actors.reward_worker.count = 2"),
        (load(gateway_cpu=0.95), [], [], "The gateway limits", "actors.session_manager.count = 2"),
        (load(used=2.0), [], [], "The CPU of this machine limits", "end the other programs"),
        (load(bounds={"evaluation": 0.8}), [], [], "Evaluations limit", "evaluation.every_steps"),
        (load(bounds={"weights": 0.8}), [], [], "Loading weights limits", "bfloat16"),
        (load(), [], ["staleness_gate.max_staleness=0"], "Synchronous training limits", "max_staleness = 1"),
        (load(bounds={"concurrency": 0.9}), [], [], "Few episodes at once limit", "staleness_gate.max_concurrent"),
    ],
)
def test_the_cause_is_named_with_its_remedy(measured, blocked, words, sentence, advice):
    found = find_limit(measured, blocked, recipe(*words))
    assert found.sentence.startswith(sentence)
    assert advice in found.advice[0]


def with_agents(measured, **fields):
    roles = measured.roles | {"rollout_worker": msgspec.structs.replace(measured.roles["rollout_worker"], **fields)}
    return msgspec.structs.replace(measured, roles=roles)


def test_agents_that_only_wait_differ_from_those_that_get_no_core():
    measured = load(calls=2.0, used=2.0, bounds={"staleness": 0.9})
    waiting = find_limit(with_agents(measured, cpu=0.3, cpu_waits=0.1), [], recipe())
    assert waiting.sentence.startswith("The agent limits")
    assert "max_staleness = 2" in waiting.advice[0]
    starved = find_limit(with_agents(measured, cpu=0.3, cpu_waits=0.6), [], recipe())
    assert starved.sentence.startswith("The CPU of this machine limits")


def test_neither_more_workers_nor_staleness_are_advised_on_a_machine_without_a_free_core():
    for process in ("inference_worker", "rollout_worker", "trainer"):
        found = find_limit(load(**busy_with(process), bounds={"staleness": 0.9}), [], recipe())
        text = " ".join(found.advice)
        assert not any(word in text for word in ("count", "threads", "max_staleness", "max_concurrent")), text


def test_other_findings_are_at_most_two_and_have_their_figures():
    block = msgspec.structs.replace(BLOCK, seconds=8.0)
    measured = load(**{**busy_with("inference_worker"), "run_cpu": 1.2}, publishes=0.3)
    found = find_limit(measured, [block], recipe())
    assert found.further == (
        "programs outside of this run use 0.8 of 2 CPU cores",
        "agent.py:7 blocked the event loop of agents for 8 s",
    )


def test_the_machine_is_measured_from_the_first_batch_on():
    fold = LoadFold({}, allowed=8, group_size=4, steps=2, window_seconds=4.0)
    usage = [MachineUsage(2, 100.0 + second, 50.0 + second / 2) for second in range(10)]
    assert fold.tick(0.0, lambda: usage[0]) is None
    fold._formed = 1
    assert fold.tick(2.0, lambda: usage[2]) is None
    measured = fold.tick(6.0, lambda: usage[6])
    assert (measured.machine_cpu, measured.run_cpu, measured.cores) == (1.0, 0.5, 2)


def test_the_meter_counts_this_process_and_keeps_the_time_of_descendants_that_have_ended():
    meter = MachineMeter()
    before = meter.measure()
    child = multiprocessing.get_context("spawn").Process(target=sum, args=(range(20_000_000),))
    child.start()
    while child.is_alive():
        during = meter.measure()
    child.join()
    after = meter.measure()
    assert before.cores >= 1
    assert after.machine > before.machine
    assert during.run - before.run > 0.2
    assert after.run >= during.run
