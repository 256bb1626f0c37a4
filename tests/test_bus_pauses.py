"""Pauses of the bus and of its clients together, as of a suspended machine: what was on its way is repeated, not an
error."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from support.live_run import ROOT

from areal_bus.retry_time import RetryTime
from areal_bus.server import EmbeddedServer

PUBLISHER = """
import asyncio, sys
from pathlib import Path
from areal_actors.messages import KINDS, ActorStopped
from areal_bus.base import Stamp
from areal_bus.nats import NatsBus

async def main(url, token, folder):
    bus = await NatsBus.connect(url, "run", name="publisher", token=token, kinds=KINDS, retry_for_seconds=2)
    number = 0
    while not Path(folder, "stop").exists():
        await bus.publish(ActorStopped(actor="a", process=str(number)), Stamp(id=str(number), sender="a", time=0.0))
        await bus.position("a")
        number += 1
        Path(folder, "count").write_text(str(number))
    assert number == len([envelope async for envelope in bus.log()])
    await bus.close()

asyncio.run(main(*sys.argv[1:]))
"""
SECONDS = 120.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_attempts_count_and_a_pause_hardly_does() -> None:
    clock = Clock()
    time = RetryTime(30.0, 5.0, clock)
    for _ in range(5):
        clock.now += 5.1
        assert not time.is_over()
    clock.now += 5.1
    assert time.is_over()
    time = RetryTime(30.0, 5.0, clock)
    clock.now += 3600.0
    assert not time.is_over()
    assert time.was_paused
    clock.now += 5.0
    assert not time.is_over()
    assert not time.was_paused
    for _ in range(3):
        clock.now += 8.0
        over = time.is_over()
    assert over, "a machine on which every attempt looks like a pause"


@pytest.mark.slow
async def test_a_pause_of_client_and_server_that_is_longer_than_a_retry_loses_and_fails_nothing(tmp_path: Path) -> None:
    server = await EmbeddedServer.start(tmp_path / "server")
    command = (sys.executable, "-c", PUBLISHER, server.url, server.token, str(tmp_path))
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stderr=asyncio.subprocess.PIPE)
    count = tmp_path / "count"
    try:
        async with asyncio.timeout(SECONDS):
            for _ in range(3):
                before = count.read_text() if count.exists() else ""
                while not count.exists() or count.read_text() in (before, ""):
                    assert process.returncode is None, (await process.stderr.read()).decode()
                    await asyncio.sleep(0.05)
                for pid in (server.pid, process.pid):
                    os.kill(pid, signal.SIGSTOP)
                await asyncio.sleep(4.0)
                for pid in (process.pid, server.pid):
                    os.kill(pid, signal.SIGCONT)
                await asyncio.sleep(1.0)
            (tmp_path / "stop").touch()
            _, errors = await process.communicate()
            assert process.returncode == 0, errors.decode()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await server.stop()
