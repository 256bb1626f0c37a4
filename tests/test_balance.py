"""The recommended number of workers follows from the load, and following it balances a simulated run without
oscillation."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from areal_actors.core.autoscale_settings import AutoscaleSettings, WorkerBounds
from areal_actors.core.values import SamplingParams, Task, WeightsLocation
from areal_actors.messages import (
    ActorStarted,
    ActorStopped,
    AgentReturned,
    BatchFormed,
    CapacityGranted,
    EpisodeScored,
    Heartbeat,
    LoadMeasured,
    RoleLoad,
    RunEpisode,
    WeightsPublished,
    WorkerLeft,
)
from areal_actors.recipe.load import load as load_recipe
from areal_actors.scaling.balance import mean_load, recommend
from areal_actors.scaling.load import LoadFold

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
MODULES = ("history", "simulated_hardware", "simulated_run", "simulated_cases", "simulated_scaling")


def role(workers, slots, busy, waiting=0.0, cpu=0.1):
    return RoleLoad(workers=workers, slots=slots, busy=busy, waiting=waiting, cpu=cpu)


def load(waits, *, rollout=None, inference=None, reward=None, seconds=10.0, episodes=60.0, **other):
    roles = {"rollout_worker": rollout or role(1, 100, 50), "inference_worker": inference or role(1, 100, 10)}
    roles |= {"reward_worker": reward or role(1, 1, 0.2)}
    return LoadMeasured(seconds=seconds, trainer_waits=waits, episodes=episodes, allowed=100, roles=roles, **other)


CASES = [
    ("balanced", load(0.05), {}, "the run is balanced"),
    (
        "rollout slots",
        load(0.5, rollout=role(1, 16, 16, 44)),
        {"rollout_worker": 2},
        "44.0 episodes wait for one of 16 slots",
    ),
    ("no more slots than work", load(0.6, rollout=role(4, 40, 40, 8)), {"rollout_worker": 5}, "8.0 episodes wait"),
    ("scores", load(0.4, reward=role(1, 1, 1, 9)), {"reward_worker": 2}, "9.0 scores wait for one of 1 slots"),
    ("scores, more", load(0.2, reward=role(4, 4, 4, 9)), {"reward_worker": 7}, "9.0 scores wait for one of 4 slots"),
    (
        "completions",
        load(0.3, inference=role(2, 20, 20, 30)),
        {"inference_worker": 4},
        "30.0 completions wait for one of 20 slots",
    ),
    ("KV cache", load(0.3, engine_full=True), {"inference_worker": 2}, "the KV cache of an engine is full"),
    (
        "slow engines",
        load(0.4, inference=role(1, 100, 50)),
        {"inference_worker": 2},
        "50.0 of 60.0 running episodes are in a completion",
    ),
    ("busy agents", load(0.4, rollout=role(1, 100, 50, cpu=0.97)), {"rollout_worker": 2}, "agents use 0.97 CPU cores"),
    ("slow agents", load(0.4), {}, "raise staleness_gate.max_concurrent or max_staleness"),
    ("nothing may run", load(0.4, episodes=2.0), {}, "a bound of the staleness gate is reached"),
    ("gateway", load(0.4, gateway_cpu=0.98, reward=role(1, 1, 1, 9)), {}, "the gateway uses 0.98 CPU cores"),
    (
        "idle engines",
        load(0.0, inference=role(3, 300, 20), episodes=20.0),
        {"inference_worker": 2},
        "only 20.0 of 100 allowed episodes run",
    ),
    (
        "idle rollout slots",
        load(0.01, rollout=role(2, 100, 20)),
        {"rollout_worker": 1},
        "only 20.0 of 100 slots are in use",
    ),
    (
        "one engine less would be too few",
        load(0.0, inference=role(2, 200, 40), episodes=40.0),
        {},
        "the run is balanced",
    ),
    ("no worker is idle enough", load(0.0), {}, "no more workers are needed"),
]


@pytest.mark.parametrize(
    ("measured", "changed", "reason"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_the_recommendation_follows_from_the_load(measured, changed, reason):
    found = recommend(measured)
    assert {one.role for one in found} == set(measured.roles)
    assert {one.role: one.recommended for one in found if one.change()} == changed
    assert any(reason in one.reason for one in found if bool(changed) == bool(one.change()))


def test_the_longest_queue_comes_first():
    found = recommend(load(0.5, rollout=role(1, 10, 10, 5), reward=role(1, 1, 1, 4)))
    assert [one.role for one in found] == ["reward_worker", "rollout_worker", "inference_worker"]


def test_only_the_last_windows_with_the_same_workers_count():
    one, two = role(1, 1, 1, 9), role(2, 2, 2, 2)
    whole = mean_load([load(0.9, reward=one), load(0.4, reward=two, seconds=10.0), load(0.1, reward=two, seconds=30.0)])
    assert (whole.seconds, whole.trainer_waits) == (40.0, pytest.approx(0.175))
    assert mean_load([]) is None


def beat(actor, cpu=0.0, **handling):
    return Heartbeat(
        actor=actor, process=actor, pid=1, handling=handling, waits=(), status={}, cpu_seconds=cpu, peak_memory_bytes=0
    )


def formed(step):
    return BatchFormed(
        step=step,
        groups=(),
        oldest_version=0,
        trained_trajectories=0,
        trained_tokens=0,
        dropped_trajectories=0,
        dropped_tokens=0,
    )


def published(version):
    return WeightsPublished(weight_version=version, location=WeightsLocation(folder="", checksum="", model=""))


def test_the_load_is_measured_between_the_first_and_the_last_batch():
    fold = LoadFold(
        {"reward_worker": 1, "inference_worker": 8, "rollout_worker": 4},
        allowed=8,
        group_size=4,
        steps=2,
        window_seconds=4.0,
    )
    for actor in ("reward_worker-0", "inference_worker-0", "rollout_worker-0", "session_manager-0"):
        fold.receive(ActorStarted(actor=actor, process=actor, pid=1))
    fold.receive(CapacityGranted(first_group=0, groups=2, weight_version=0))
    assert fold.tick(0.0) is None
    assert fold.tick(100.0) is None
    fold.receive(formed(0))
    fold.receive(beat("rollout_worker-0", RunEpisode=3, cpu=10.0))
    fold.receive(beat("inference_worker-0", Generate=3))
    fold.receive(beat("reward_worker-0", ScoreEpisode=2))
    for session in ("0.0-1-abc", "0.1-1-abc-g1", "0.2-1-abc-g0"):  # the last two: with several gateways
        fold.receive(AgentReturned(session=session))
    work = RunEpisode(episode="0.0", group="0", task=Task(id="t", data={}), sampling=SamplingParams())
    fold.receive(EpisodeScored(work=work, session="0.0-1-abc", reward=1.0))
    assert fold.tick(101.0) is None
    fold.receive(published(1))
    assert fold.tick(103.0) is None
    fold.receive(beat("rollout_worker-0", RunEpisode=3, cpu=13.0))
    found = fold.tick(105.0)
    assert (found.seconds, found.trainer_waits, found.episodes, found.allowed) == (4.0, 1.0, 7.0, 8)
    assert found.roles == {
        "reward_worker": role(1, 1, 1, 1, 0.0),
        "inference_worker": role(1, 8, 3, 0, 0.0),
        "rollout_worker": role(1, 4, 3, 1, 0.75),  # of two that are not handled yet, the free slot takes the other
    }
    fold.receive(ActorStarted(actor="reward_worker-1", process="reward_worker-1", pid=1))
    assert fold.tick(107.0) is None
    fold.receive(formed(1))
    rest = fold.tick(107.5)
    assert (rest.seconds, rest.trainer_waits, rest.roles["reward_worker"].workers) == (2.0, 1.0, 2)
    fold.receive(ActorStopped(actor="reward_worker-1", process="reward_worker-1"))
    assert fold.tick(120.0) is None, "the last batch is formed"


def test_a_worker_of_another_host_that_was_let_go_serves_no_more():
    fold = LoadFold({"rollout_worker": 4}, allowed=8, group_size=4, steps=9, window_seconds=4.0)
    for actor in ("rollout_worker-0", "rollout_worker-10000"):
        fold.receive(ActorStarted(actor=actor, process=actor, pid=1))
    fold.receive(formed(0))
    fold.receive(WorkerLeft(worker="rollout_worker-10000", reason="no heartbeat"))
    fold.tick(0.0)
    assert fold.tick(5.0).roles["rollout_worker"].workers == 1


@pytest.fixture
def simulated(monkeypatch):
    """The simulation with workers that start and leave."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield (
        importlib.import_module("simulated_scaling"),
        importlib.import_module("simulated_cases"),
        importlib.import_module("simulated_hardware"),
    )
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("scaled", "words", "reward_seconds"),
    [("rollout_worker", ("actors.rollout_worker.concurrency=2",), 0.0), ("reward_worker", (), 0.4)],
)
def test_following_the_recommendation_balances_a_run_and_then_stays(simulated, scaled, words, reward_seconds):
    scaling, cases, hardware = simulated
    small = ("profile=cuda", "steps=60", "trainer.batch_size=4", "algorithm.group_size=4")
    recipe = load_recipe([cases.RECIPE], [*small, *words], cases.DEVICES).recipe
    bounds = WorkerBounds(max=8)
    settings = AutoscaleSettings(
        enabled=True,
        window_seconds=8.0,
        cooldown_seconds=8.0,
        rollout_worker=bounds,
        inference_worker=bounds,
        reward_worker=bounds,
    )
    run = scaling.ScaledRun(recipe, hardware.Machine(), 0.6, 1, autoscale=settings, reward_seconds=reward_seconds)
    outcome = run.outcome()
    assert {decision.role for decision in run.decisions} == {scaled}
    assert all(decision.before < decision.workers <= 8 for decision in run.decisions), "no oscillation"
    waits = [load.trainer_waits for load in run.loads]
    assert min(waits[:2]) > 0.4
    assert max(waits[-2:]) < 0.1
    assert outcome.oldest <= 2
    assert outcome.surplus + outcome.dropped < 16, "workers that leave lose no episode"
