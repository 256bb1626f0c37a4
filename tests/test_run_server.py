"""A run whose nats-server is killed, paused or gone: it goes on with every step once, or it ends with one sentence."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
from collections import Counter

import psutil
import pytest

from areal_actors.messages import (
    ActorFailed,
    BatchFormed,
    BusRestarted,
    CheckpointCommitted,
    RunFinished,
    StepCompleted,
)
from areal_actors.weights.folders import shared_memory_path
from areal_bus.server import find_binary

pytestmark = pytest.mark.long


def server_of(run):
    """The process id of the run's present nats-server; 0 while there is none."""
    config = str(run.folder / "nats" / "nats-server.conf")
    for process in psutil.process_iter(["cmdline", "status"]):
        if config in (process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE:
            return process.pid
    return 0


async def kill_server(run):
    while not (pid := server_of(run)):
        assert run.process.poll() is None, run.output()
        await asyncio.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    return pid


async def assert_whole(run, steps):
    assert await run.ended() == 0, run.output()
    events = [event for _, event in await run.log()]
    assert [event.step for event in events if isinstance(event, StepCompleted)] == list(range(1, steps + 1))
    members = Counter(
        member.episode
        for event in events
        if isinstance(event, BatchFormed)
        for group in event.groups
        for member in group
    )
    assert set(members.values()) == {1}
    assert [event for event in events if isinstance(event, RunFinished)] == [RunFinished(steps=steps)]
    assert run.processes_left() == []
    assert not shared_memory_path("gsm8k-grpo", run.folder).exists()
    assert "Traceback" not in run.output()
    return events


async def test_a_server_that_is_killed_ten_times_costs_no_step(live):
    moments = random.Random(0)
    run = live("steps=24", "checkpoint.every_steps=4", "evaluation.every_steps=4", "bus.max_restarts=20")
    await kill_server(run)  # at the start
    kills = 1
    while kills < 9:
        await asyncio.sleep(moments.uniform(0.2, 4.0))
        if run.process.poll() is not None:
            break
        await kill_server(run)
        kills += 1
    async with run.listening(300):
        await run.until(CheckpointCommitted, 6, 300)
    if run.process.poll() is None and (pid := server_of(run)):
        os.kill(pid, signal.SIGKILL)  # at the very end
    events = await assert_whole(run, 24)
    assert len([event for event in events if isinstance(event, BusRestarted)]) >= kills - 2
    assert "nats-server restarted" in run.output()


@pytest.mark.parametrize("seconds", [5, 20])
async def test_a_paused_server_kills_no_process(live, seconds):
    run = live("steps=8", "checkpoint.every_steps=4")
    async with run.listening(300):
        await run.until(StepCompleted, 2, 300)
    pid = server_of(run)
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(seconds)
    if server_of(run) == pid:
        os.kill(pid, signal.SIGCONT)
    events = await assert_whole(run, 8)
    assert not [event for event in events if isinstance(event, ActorFailed)]


async def test_a_server_that_cannot_be_started_again_ends_the_run_with_one_sentence(live, tmp_path, monkeypatch):
    binary = tmp_path / "nats-server"
    shutil.copy(find_binary(), binary)
    monkeypatch.setenv("AREAL_NATS_SERVER", str(binary))
    run = live("steps=30")
    async with run.listening(300):
        await run.until(StepCompleted, 2, 300)
    binary.unlink()
    await kill_server(run)
    assert await run.ended() == 1
    output = run.output()
    assert "Traceback" not in output
    assert "ended with signal SIGKILL, and it cannot be restarted: AREAL_NATS_SERVER is" in output
    assert run.processes_left() == []
    assert not shared_memory_path("gsm8k-grpo", run.folder).exists()
    assert not (run.folder / "bus.json").exists()
    monkeypatch.delenv("AREAL_NATS_SERVER")
    run.resume("checkpoint.every_steps=0")
    async with run.listening(300):
        await run.until(StepCompleted, 4, 300)
    run.process.send_signal(signal.SIGTERM)
    assert await run.ended() == 130


async def test_a_budget_that_is_used_up_ends_the_run(live):
    run = live("steps=30", "bus.max_restarts=0")
    async with run.listening(300):
        await run.until(StepCompleted, 1, 300)
    await kill_server(run)
    assert await run.ended() == 1
    assert "raise bus.max_restarts" in run.output()
    assert "Traceback" not in run.output()
    assert run.processes_left() == []
