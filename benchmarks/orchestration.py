"""Orchestration overhead: episodes per second and CPU time of every process, without model and gradient cost.

    python benchmarks/orchestration.py [--concurrency 8 64] [--steps 30] [--repeats 3]

The system is real (NATS server, gateway, actors, `agents/gsm8k.py` with the OpenAI client, reward processes), except for an engine
that answers immediately and a trainer without a gradient. The floor (baseline) alternates with it in the same run: the same agent and
client at the same concurrency, calling an aiohttp server that answers immediately. Compare the ratios. With all cores busy in the
system, episodes per second follow from the sum of CPU; the floor is limited by its single agent process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil
import uvloop
from history import ROOT, append, busy_seconds, others_share, parse_arguments, table
from orchestration_floor import AGENT

from areal_actors.embedded.embedded_model import train_tokenizer, write_tokenizer
from areal_actors.messages import KINDS, RunStarted, StepCompleted
from areal_actors.recipe.recipe import Recipe
from areal_actors.run.run_folder import RunFolder, ServerAddress
from bus.base import Stamp
from bus.nats import NatsBus
from bus.server import EmbeddedServer

RUN = "orchestration"
GROUP_SIZE = 4
BATCH_SIZE = 16
EPISODES_A_STEP = GROUP_SIZE * BATCH_SIZE
WARM_UP_STEPS = 4
"""Steps before the measurement; the floor warms up with as many episodes."""
LONGEST_SECONDS = 300.0
SERVER = "nats-server"
QUICK = {"concurrency": [8], "steps": 2, "repeats": 1}


@dataclass(frozen=True)
class Measured:
    """Number of episodes, their duration, and the CPU seconds of every process."""

    episodes: int
    seconds: float
    cpu: dict[str, float]
    others: float
    """Share of the machine's CPU used by other processes."""

    @property
    def rate(self) -> float:
        """Episodes a second."""
        return self.episodes / self.seconds

    def cost(self, process: str = "") -> float:
        """CPU milliseconds an episode, of one process or of all."""
        return 1000 * (self.cpu[process] if process else sum(self.cpu.values())) / self.episodes


def recipe(concurrency: int, steps: int, folder: Path) -> Recipe:
    """Return a recipe in which the concurrency is the only limit reached."""
    return msgspec.convert(
        {
            "run": RUN,
            "steps": WARM_UP_STEPS + steps,
            "model": "embedded",
            "folder": str(folder),
            "task": {"dataset": "arithmetic", "agent": AGENT, "reward": "gsm8k"},
            "algorithm": {"name": "grpo", "group_size": GROUP_SIZE},
            "staleness_gate": {"max_staleness": 8, "max_concurrent": concurrency // GROUP_SIZE},
            "trainer": {"batch_size": BATCH_SIZE},
            "evaluation": {"tasks": 0},
        },
        Recipe,
    )


@asynccontextmanager
async def system(plan: Recipe, folder: RunFolder) -> AsyncIterator[tuple[NatsBus, dict[str, psutil.Process]]]:
    """Start every process of a run except its supervisor."""
    folder.create(plan)
    folder.model.mkdir()
    write_tokenizer(train_tokenizer(), folder.model)
    server = await EmbeddedServer.start(folder.nats)
    try:
        bus = await NatsBus.connect(server.url, plan.run, name="benchmark", token=server.token, kinds=KINDS, blobs=folder.blobs)
        folder.announce(ServerAddress(url=server.url, token=server.token, run=plan.run, pid=os.getpid()))
        names = dict.fromkeys(placement["process"] for placement in msgspec.to_builtins(plan.actors).values())
        with processes(folder, list(names)) as started:
            yield bus, {SERVER: psutil.Process(server.pid), **started}
        await bus.close()
    finally:
        await server.stop()


@contextmanager
def processes(folder: RunFolder, names: list[str]) -> Iterator[dict[str, psutil.Process]]:
    """Start the processes with these names; they end with this context."""
    script = str(Path(__file__).with_name("orchestration_process.py"))
    started: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name in names:
            with folder.output_of(name).open("ab") as output:
                command = [sys.executable, script, str(folder.path), name]
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, cwd=ROOT)
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(folder.server()) + b"\n")
            process.stdin.flush()
            started[name] = process
        yield {name: psutil.Process(process.pid) for name, process in started.items()}
    finally:
        for process in started.values():
            process.send_signal(signal.SIGTERM)
        for process in started.values():
            process.communicate()


async def measure_system(concurrency: int, steps: int, folder: Path) -> Measured:
    """Measure the system between two steps."""
    plan = recipe(concurrency, steps, folder)
    async with system(plan, RunFolder(folder / RUN)) as (bus, running):
        started = RunStarted(recipe=msgspec.to_builtins(plan), profile="benchmark", reason="measured", folder=str(folder))
        await bus.publish(started, Stamp(id="started", sender="benchmark", time=time.time()))
        began, busy, before = 0.0, 0.0, dict[str, float]()
        async with asyncio.timeout(LONGEST_SECONDS):
            async for step in completed_steps(bus):
                if step == WARM_UP_STEPS:
                    began, busy, before = time.perf_counter(), busy_seconds(), cpu_seconds(running)
                if step == plan.steps:
                    break
        seconds, cpu = time.perf_counter() - began, {name: after - before[name] for name, after in cpu_seconds(running).items()}
        others = others_share(busy_seconds() - busy, sum(cpu.values()), seconds)
        return Measured(episodes=steps * EPISODES_A_STEP, seconds=seconds, cpu=cpu, others=others)


async def completed_steps(bus: NatsBus) -> AsyncIterator[int]:
    """Yield the number of each completed step; reads only these events, to save CPU."""
    async with bus.events(StepCompleted, consumer="benchmark") as deliveries:
        async for delivery in deliveries:
            assert isinstance(delivery.message, StepCompleted)
            yield delivery.message.step


def cpu_seconds(running: dict[str, psutil.Process]) -> dict[str, float]:
    """User and system time of each process and its children."""
    return {name: sum(map(_cpu_seconds, [process, *process.children(recursive=True)])) for name, process in running.items()}


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def measure_floor(concurrency: int, episodes: int) -> Measured:
    """Measure the same agents with a minimal server."""
    command = [sys.executable, str(Path(__file__).with_name("orchestration_floor.py")), str(episodes), str(concurrency)]
    printed = subprocess.run(command, check=True, capture_output=True, cwd=ROOT, timeout=LONGEST_SECONDS).stdout
    figures = json.loads(printed)
    return Measured(episodes=episodes, seconds=figures.pop("seconds"), others=figures.pop("others"), cpu=figures)


def median(runs: list[Measured]) -> Measured:
    """Return the run with the median rate."""
    return sorted(runs, key=lambda run: run.rate)[len(runs) // 2]


async def compare(concurrency: int, steps: int, repeats: int) -> dict[str, Any]:
    """Alternate floor and system; returns medians of the ratios of adjacent runs."""
    floors, systems = [], []
    for _ in range(repeats):
        floors.append(await asyncio.to_thread(measure_floor, concurrency, steps * EPISODES_A_STEP))
        with tempfile.TemporaryDirectory() as temporary:
            systems.append(await measure_system(concurrency, steps, Path(temporary)))
    pairs = list(zip(floors, systems, strict=True))
    floor, whole = median(floors), median(systems)
    return {
        "concurrency": concurrency,
        "floor_rate": round(floor.rate, 1),
        "system_rate": round(whole.rate, 1),
        "rate_ratio": round(statistics.median(system.rate / floor.rate for floor, system in pairs), 3),
        "floor_cpu_ms": round(floor.cost(), 3),
        "system_cpu_ms": round(whole.cost(), 3),
        "cpu_ratio": round(statistics.median(system.cost() / floor.cost() for floor, system in pairs), 2),
        "cpu_ms": {process: round(whole.cost(process), 3) for process in whole.cpu},
        "others": round(max(run.others for run in floors + systems), 3),
        "floor_processes_cpu_ms": {process: round(floor.cost(process), 3) for process in floor.cpu},
    }


def main() -> None:
    """Measure, print, append to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[8, 64], metavar="EPISODES", help="in flight at once; multiples of 4")
    parser.add_argument("--steps", type=int, default=30, help=f"of {EPISODES_A_STEP} episodes, measured after {WARM_UP_STEPS} more")
    parser.add_argument("--repeats", type=int, default=3, help="number of alternations of floor and system")
    arguments = parse_arguments(parser, QUICK)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        cases = [runner.run(compare(concurrency, arguments.steps, arguments.repeats)) for concurrency in arguments.concurrency]
    header = ["episodes at once", "floor eps/s", "system eps/s", "ratio", "floor CPU ms", "system CPU ms", "ratio", "others' CPU"]
    keys = ["concurrency", "floor_rate", "system_rate", "rate_ratio", "floor_cpu_ms", "system_cpu_ms", "cpu_ratio", "others"]
    print(table(header, [[case[key] for key in keys] for case in cases]))
    print()
    rows = [[process, *(case["cpu_ms"][process] for case in cases)] for process in cases[0]["cpu_ms"]]
    print(table(["CPU ms an episode", *(f"{case['concurrency']} at once" for case in cases)], rows))
    if not arguments.no_history:
        append("orchestration", {"cases": cases})


if __name__ == "__main__":
    main()
