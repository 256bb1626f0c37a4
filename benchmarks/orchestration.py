"""Orchestration overhead: episodes per second and CPU time of every process, without model and gradient cost.

    python benchmarks/orchestration.py [--concurrency 8 64] [--calls 0 1 10] [--clients sdk light] [--steps 30]

The system is real (NATS server, gateway, actors, an agent with the OpenAI client or the light one, reward processes),
except for an engine that answers immediately and a trainer without a gradient. An episode has this number of model
calls in one conversation; one without any has no trajectory, so that it is abandoned. The floor (baseline) alternates
with the system in the same run: the agent with the OpenAI client at the same concurrency, calling an aiohttp server
that answers immediately. Compare the ratios. With all cores busy in the system, episodes per second follow from the sum
of CPU; the floor is limited by its single agent process.
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
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil
import uvloop
from history import ROOT, append, busy_seconds, others_share, parse_arguments, table
from orchestration_floor import AGENT

from areal_actors.embedded.embedded_model import train_tokenizer, write_tokenizer
from areal_actors.folder.run_folder import RunFolder, ServerAddress
from areal_actors.messages import KINDS, EpisodeAbandoned, RunStarted, TrajectoryExported
from areal_actors.recipe.recipe import Recipe
from areal_bus.base import Stamp
from areal_bus.errors import LogUnavailable
from areal_bus.message import Event
from areal_bus.nats import NatsBus
from areal_bus.server import EmbeddedServer

RUN = "orchestration"
GROUP_SIZE = 4
BATCH_SIZE = 16
EPISODES_A_STEP = GROUP_SIZE * BATCH_SIZE
WARM_UP_STEPS = 4
"""Steps before the measurement; the floor warms up with as many episodes."""
LONGEST_SECONDS = 300.0
SERVER = "nats-server"
QUICK = {"concurrency": [8], "calls": [0, 1], "clients": ["light"], "steps": 2, "repeats": 1}
POLL_SECONDS = 0.1


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


def recipe(concurrency: int, steps: int, folder: Path, agent_options: Mapping[str, Any], **tables: Any) -> Recipe:
    """Return a recipe in which the concurrency is the only limit reached; `tables` are further tables of it."""
    return msgspec.convert(
        {
            **tables,
            "run": RUN,
            "steps": WARM_UP_STEPS + steps,
            "model": "embedded",
            "folder": str(folder),
            "task": {
                "dataset": "arithmetic",
                "agent": AGENT,
                "agent_options": agent_options,
                "reward": "gsm8k",
                "retries": 0,
                "timeout_seconds": LONGEST_SECONDS,
            },
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
        options: dict[str, Any] = {"kinds": KINDS, "blobs": folder.blobs, "compress": plan.log.compress}
        bus = await NatsBus.connect(server.url, plan.run, name="benchmark", token=server.token, **options)
        folder.announce(ServerAddress(url=server.url, token=server.token, run=plan.run, pid=os.getpid()))
        names = dict.fromkeys(placement["process"] for placement in msgspec.to_builtins(plan.actors).values())
        with processes(folder, list(names)) as started:
            yield bus, {SERVER: psutil.Process(server.pid), **started}
        await bus.close()
    finally:
        await server.stop()


@contextmanager
def processes(
    folder: RunFolder, names: list[str], program: str = "orchestration_process.py"
) -> Iterator[dict[str, psutil.Process]]:
    """Start the processes with these names; they end with this context."""
    script = str(Path(__file__).with_name(program))
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


async def begin(bus: NatsBus, plan: Recipe, folder: Path) -> None:
    """Start the run."""
    started = RunStarted(recipe=msgspec.to_builtins(plan), profile="benchmark", reason="measured", folder=str(folder))
    await bus.publish(started, Stamp(id="started", sender="benchmark", time=time.time()))


async def measure_system(concurrency: int, calls: int, client: str, steps: int, folder: Path) -> Measured:
    """Measure the system between two steps, or two numbers of ended episodes if these have no trajectory."""
    plan = recipe(concurrency, steps, folder, {"calls": calls, "light": client == "light"})
    async with system(plan, RunFolder(folder / RUN)) as (bus, running):
        await begin(bus, plan, folder)
        ended = TrajectoryExported if calls else EpisodeAbandoned
        async with asyncio.timeout(LONGEST_SECONDS):
            first = await count_reached(bus, ended, WARM_UP_STEPS * EPISODES_A_STEP)
            began, busy, before = time.perf_counter(), busy_seconds(), cpu_seconds(running)
            last = await count_reached(bus, ended, (WARM_UP_STEPS + steps) * EPISODES_A_STEP)
        seconds, cpu = (
            time.perf_counter() - began,
            {name: after - before[name] for name, after in cpu_seconds(running).items()},
        )
        others = others_share(busy_seconds() - busy, sum(cpu.values()), seconds)
        return Measured(episodes=last - first, seconds=seconds, cpu=cpu, others=others)


async def count_reached(bus: NatsBus, kind: type[Event], least: int) -> int:
    """Wait until the log has this number of events of a kind; returns it.

    The server is asked, which costs less than reading them.
    """
    subject, count = bus.streams.prefix + kind.subject, 0
    while True:
        with suppress(LogUnavailable):  # a machine under full load answers late
            state = (await bus.streams.api(f"STREAM.INFO.{bus.streams.log}", {"subjects_filter": subject}))["state"]
            count = int((state.get("subjects") or {}).get(subject, 0))
        if count >= least:
            return count
        await asyncio.sleep(POLL_SECONDS)


def cpu_seconds(running: dict[str, psutil.Process]) -> dict[str, float]:
    """User and system time of each process and its children."""
    return {
        name: sum(map(_cpu_seconds, [process, *process.children(recursive=True)])) for name, process in running.items()
    }


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def measure_floor(concurrency: int, calls: int, episodes: int) -> Measured:
    """Measure the same agents with a minimal server."""
    command = [
        sys.executable,
        str(Path(__file__).with_name("orchestration_floor.py")),
        str(episodes),
        str(concurrency),
        str(calls),
    ]
    printed = subprocess.run(command, check=True, capture_output=True, cwd=ROOT, timeout=LONGEST_SECONDS).stdout
    figures = json.loads(printed)
    return Measured(episodes=episodes, seconds=figures.pop("seconds"), others=figures.pop("others"), cpu=figures)


def median(runs: list[Measured]) -> Measured:
    """Return the run with the median rate."""
    return sorted(runs, key=lambda run: run.rate)[len(runs) // 2]


async def compare(concurrency: int, calls: int, client: str, steps: int, repeats: int) -> dict[str, Any]:
    """Alternate floor and system; returns medians of the ratios of adjacent runs."""
    floors, systems = [], []
    for _ in range(repeats):
        floors.append(await asyncio.to_thread(measure_floor, concurrency, calls, steps * EPISODES_A_STEP))
        with tempfile.TemporaryDirectory() as temporary:
            systems.append(await measure_system(concurrency, calls, client, steps, Path(temporary)))
    pairs = list(zip(floors, systems, strict=True))
    floor, whole = median(floors), median(systems)
    return {
        "concurrency": concurrency,
        "calls": calls,
        "client": client,
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
    parser.add_argument(
        "--concurrency",
        type=int,
        nargs="+",
        default=[8, 64],
        metavar="EPISODES",
        help="in flight at once; multiples of 4",
    )
    parser.add_argument(
        "--calls", type=int, nargs="+", default=[0, 1, 10], metavar="CALLS", help="model calls of an episode"
    )
    parser.add_argument(
        "--clients", choices=["sdk", "light"], nargs="+", default=["sdk", "light"], help="of the agent (default: both)"
    )
    parser.add_argument(
        "--steps", type=int, default=30, help=f"of {EPISODES_A_STEP} episodes, measured after {WARM_UP_STEPS} more"
    )
    parser.add_argument("--repeats", type=int, default=3, help="number of alternations of floor and system")
    arguments = parse_arguments(parser, QUICK)
    cases = []
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for calls in arguments.calls:
            for client in arguments.clients[: None if calls else 1]:  # without a call there is no client
                for concurrency in arguments.concurrency:
                    case = runner.run(compare(concurrency, calls, client, arguments.steps, arguments.repeats))
                    cases.append(case)
                    ratio = f"{case['cpu_ratio']:.2f} times the CPU of the floor"
                    print(f"{calls} calls, {client}, {concurrency} at once: {ratio}", file=sys.stderr)
    header = [
        "calls",
        "client",
        "episodes at once",
        "floor eps/s",
        "system eps/s",
        "ratio",
        "floor CPU ms",
        "system CPU ms",
        "ratio",
        "others' CPU",
    ]
    keys = [
        "calls",
        "client",
        "concurrency",
        "floor_rate",
        "system_rate",
        "rate_ratio",
        "floor_cpu_ms",
        "system_cpu_ms",
        "cpu_ratio",
        "others",
    ]
    print(table(header, [[case[key] for key in keys] for case in cases]))
    print()
    rows = [[process, *(case["cpu_ms"][process] for case in cases)] for process in cases[0]["cpu_ms"]]
    print(
        table(
            [
                "CPU ms an episode",
                *(f"{case['calls']} calls, {case['client']}, {case['concurrency']} at once" for case in cases),
            ],
            rows,
        )
    )
    if not arguments.no_history:
        append("orchestration", {"cases": cases})


if __name__ == "__main__":
    main()
