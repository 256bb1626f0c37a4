"""The injector of faults: announces each fault, injects it, and waits until the run is healthy."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time

from test_chaos import batch

from areal_actors.chaos.injector import Chaos, FaultTargets
from areal_actors.chaos.settings import ChaosSettings, FlipFaults, KillFaults
from areal_actors.messages import ActorStarted, StepCompleted


def sleeper():
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


def chaos_of(tmp_path, settings, published, processes):
    async def publish(event):
        published.append(event)

    return Chaos(
        settings, FaultTargets(tmp_path, lambda: processes, {name: frozenset({name}) for name in processes}), publish
    )


async def test_each_fault_is_announced_before_it_is_injected_and_the_next_waits_until_the_run_is_healthy(tmp_path):
    victims = [sleeper() for _ in range(2)]
    published, ending = [], []
    settings = ChaosSettings(enabled=True, kill=KillFaults(per_minute=60_000.0, targets=("a", "b")))
    chaos = chaos_of(tmp_path, settings, published, {"a": victims[0].pid, "b": victims[1].pid})
    running = asyncio.create_task(chaos.run(lambda: True, lambda: bool(ending)))
    try:
        await asyncio.sleep(0.3)
        assert published == [], "nothing serves yet"
        for event in (
            ActorStarted(actor="a", process="a", pid=1),
            batch(0),
            StepCompleted(step=1, metrics={}, sequences_checksum=""),
        ):
            chaos.health.receive(event)
        async with asyncio.timeout(300):
            while not published:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        first = victims["ab".index(published[0].target)]
        assert await asyncio.to_thread(first.wait, 120) == -signal.SIGKILL
        await asyncio.sleep(0.3)
        assert len(published) == 1, "the run is not over the first fault"
        chaos.health.receive(batch(1))
        ending.append(True)
        chaos.health.receive(StepCompleted(step=2, metrics={}, sequences_checksum=""))
        await asyncio.wait_for(running, 300)
        assert len(published) == 1, "the run is ending"
    finally:
        running.cancel()
        for victim in victims:
            victim.kill()
            victim.wait()


async def test_a_checkpoint_is_damaged_and_its_reader_killed_and_a_fault_without_a_target_waits(tmp_path):
    trainer = sleeper()
    published, ending = [], []
    settings = ChaosSettings(enabled=True, flip=FlipFaults(per_minute=60_000.0))
    chaos = chaos_of(tmp_path, settings, published, {"trainer": trainer.pid})
    for event in (
        ActorStarted(actor="t", process="trainer", pid=1),
        batch(0),
        StepCompleted(step=1, metrics={}, sequences_checksum=""),
    ):
        chaos.health.receive(event)
    running = asyncio.create_task(chaos.run(lambda: True, lambda: bool(ending)))
    try:
        await asyncio.sleep(0.3)
        assert published == [], "there is no checkpoint"
        weights = tmp_path / "checkpoints" / "step-1" / "weights"
        weights.parent.mkdir(parents=True)
        weights.write_bytes(bytes(64))
        assert await asyncio.to_thread(trainer.wait, 30) == -signal.SIGKILL
        assert sum(byte.bit_count() for byte in weights.read_bytes()) == 1
        assert published[0].detail.startswith("one bit of checkpoints/step-1/weights")
    finally:
        running.cancel()
        trainer.kill()
        trainer.wait()


def test_everything_is_killed_the_server_first_and_its_store_damaged_between(tmp_path):
    block = tmp_path / "1.blk"
    block.write_bytes(bytes(64))
    program = (
        "import subprocess, sys, json\n"
        "from pathlib import Path\n"
        "from random import Random\n"
        "from areal_actors.chaos.faults import end_everything\n"
        "children = [subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']) for _ in range(3)]\n"
        "print(json.dumps([child.pid for child in children]), flush=True)\n"
        f"end_everything(children[0].pid, [child.pid for child in children[1:]], (Path({str(block)!r}), Random(0)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert sum(byte.bit_count() for byte in block.read_bytes()) == 1
    for pid in json.loads(done.stdout):
        until = time.monotonic() + 300
        while time.monotonic() < until:
            listed = subprocess.run(
                ["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False
            ).stdout.strip()
            if listed[:1] in ("", "Z"):
                break
            time.sleep(0.05)
        assert listed[:1] in ("", "Z")
