"""Live runs with several policies: each trains its own tokens, once, whatever is killed in either."""

from __future__ import annotations

import asyncio
import os
import signal

import psutil
import pytest
from support.live_run import BY_SUBJECT, ROOT

from areal_actors.folder.connections import open_log
from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import (
    ActorFailed,
    EpisodeAbandoned,
    EpisodeEvaluated,
    StepCompleted,
    TrajectoryExported,
    WeightsPublished,
)
from areal_actors.reader.audit_command import audit

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
STEPS = 24
SETTINGS = (
    f"task.agent={ROOT}/tests/support/two_policies.py:TwoPolicies",
    "evaluation.tasks=4",
    "sampling.max_tokens=12",
    "checkpoint.every_steps=4",
)
OF_EACH = ("control", "gateway", "inference_worker", "trainer")
"""Processes that both runs have, each killed in both."""


def policy_folder(run, name):
    return RunFolder(run.folder / "policies" / f"gsm8k-grpo-{name}")


def process_of(folder, *words):
    """The process of a policy's run whose command line has these words."""
    for process in psutil.process_iter(["cmdline", "pid"]):
        command = " ".join(process.info["cmdline"] or [])
        if all(word in command for word in (*words, str(folder))):
            return process.info["pid"]
    return None


async def kill(find):
    """kill -9, as soon as the process is there."""
    async with asyncio.timeout(60):
        while (pid := find()) is None:  # noqa: ASYNC110 - processes have no events
            await asyncio.sleep(0.1)
    os.kill(pid, signal.SIGKILL)


async def events_of(folder):
    async with open_log(folder) as bus:
        return [envelope.open(BY_SUBJECT[envelope.subject]) async for envelope in bus.log()]


def exported(log):
    return {event.trajectory.episode: event.trajectory for event in log if isinstance(event, TrajectoryExported)}


async def test_every_process_of_two_policies_is_killed_and_each_trains_its_own_tokens_once(live, capsys):
    run = live(f"steps={STEPS}", "policies.worker.kind=trained", *SETTINGS)
    worker = policy_folder(run, "worker")
    async with run.listening():
        await run.until(StepCompleted, 1)
        for name in (*OF_EACH, "rollout_worker", "reward_worker"):
            run.kill(name)
            await run.until(StepCompleted, len(run.received(StepCompleted)) + 1)
        places = [(worker.path, "areal_actors.processes", f" {name}") for name in OF_EACH]
        for place in (*places, (worker.nats, "nats-server"), (run.folder / "policies", "policy_process")):
            await kill(lambda place=place: process_of(*place))
            await run.until(StepCompleted, len(run.received(StepCompleted)) + 1)
        assert await run.ended() == 0, run.output()
    main_log, worker_log = [event for _, event in await run.log()], await events_of(worker)
    for folder in (RunFolder(run.folder), worker):
        assert await asyncio.to_thread(audit_of, folder) == 0, capsys.readouterr().out
    mine, its = exported(main_log), exported(worker_log)
    assert its
    assert its.keys() <= mine.keys() | {event.work.episode for event in main_log if isinstance(event, EpisodeAbandoned)}
    assert all(mine[episode].reward == its[episode].reward for episode in its.keys() & mine.keys())
    assert all(len(trajectory.interactions) == 1 for trajectory in (*mine.values(), *its.values()))
    assert len([event for event in worker_log if isinstance(event, StepCompleted)]) >= 4
    killed = [sum(isinstance(event, ActorFailed) for event in log) for log in (main_log, worker_log)]
    assert killed[0] >= len(OF_EACH) + 2
    assert killed[1] >= len(OF_EACH)
    assert not run.processes_left()


def audit_of(folder):
    return audit(folder.path.name, folder=folder.path.parent)


async def test_a_policy_of_past_versions_plays_with_versions_that_were_published_before(live):
    run = live(
        "steps=8",
        *("policies.worker.kind=past", "policies.worker.every_versions=2", "policies.worker.keep_versions=2"),
        *SETTINGS,
    )
    async with run.listening():
        assert await run.ended() == 0, run.output()
    past = policy_folder(run, "worker")
    log = await events_of(past)
    drawn = [event for event in log if isinstance(event, WeightsPublished)]
    assert [event.weight_version for event in drawn] == list(range(len(drawn)))
    assert len(drawn) > 2
    ends = [event for event in log if isinstance(event, TrajectoryExported | EpisodeEvaluated)]
    assert len(ends) >= 8 * 16
    assert len(list((past.path / "versions").glob("version-*"))) == 2


async def test_a_frozen_policy_judges_every_answer_though_its_engine_and_its_gateway_are_killed(live, tmp_path):
    prompt = tmp_path / "rubric.txt"
    prompt.write_text("How good is it?\n{{answer}}\n{{criteria}}\n{{scale}}\n{{form}}\n")
    judge = f'{{policy = "worker", explains = false, max_tokens = 48, prompt = "{prompt}"}}'
    run = live(
        "steps=8",
        *("task.reward=judge", f"task.reward_options={judge}", "policies.worker.kind=frozen"),
        *("evaluation.tasks=4", "sampling.max_tokens=12"),
    )
    worker = policy_folder(run, "worker")
    async with run.listening():
        for name in ("inference_worker", "gateway"):
            await run.until(StepCompleted, len(run.received(StepCompleted)) + 1)
            await kill(lambda name=name: process_of(worker.path, "areal_actors.processes", f" {name}"))
        assert await run.ended() == 0, run.output()
    main_log, its_log = [event for _, event in await run.log()], await events_of(worker)
    assert await asyncio.to_thread(audit_of, RunFolder(run.folder)) == 0
    assert len([event for event in main_log if isinstance(event, StepCompleted)]) == 8
    assert all(0.0 <= trajectory.reward <= 1.0 for trajectory in exported(main_log).values())
    failed = [event.detail for event in main_log if isinstance(event, EpisodeAbandoned) and event.reason == "reward"]
    assert all("policy 'worker'" in detail for detail in failed)
    judged = [turn for one in exported(its_log).values() for turn in one.interactions]
    assert judged
    assert sum(isinstance(event, ActorFailed) for event in its_log) >= 2
