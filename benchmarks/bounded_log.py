"""Memory, store, consumers and restart time over a long run in which processes are killed at random.

    python benchmarks/bounded_log.py [--quick] [--episodes 20000] [--max-mb 8] [--seed 1]

The run is real (supervisor, NATS server, gateway, actors, agents with the OpenAI client, reward processes), except for
an engine that answers immediately and a trainer without a gradient. Processes are killed with SIGKILL at seeded random
times. One line is measured per twentieth of the run: the memory of each process, the store on disk, consumers on the
server, the beginning of the log. At 10 % and at 90 % `control`, which has most stateful actors, is killed several
times; the restart time is from the kill to the first decision of its replacement.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import psutil
import uvloop
from history import ROOT, append, table
from orchestration import AGENT, BATCH_SIZE, EPISODES_A_STEP, GROUP_SIZE

from areal_actors.embedded.embedded_model import train_tokenizer, write_tokenizer
from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import (
    KINDS,
    ActorFailed,
    ActorStarted,
    BatchFormed,
    CapacityGranted,
    LogTrimmed,
    RunFinished,
    StepCompleted,
    TrajectoryExported,
)
from areal_actors.processes.process import actors_of_process
from areal_actors.recipe.recipe import Recipe
from areal_bus.message import Event
from areal_bus.nats import NatsBus

RUN = "bounded-log"
KILLED_PROCESSES = ("control", "gateway", "rollout_worker", "reward_worker", "inference_worker", "trainer")
PARTS = 20
LAST_KILLING_PART = 18
"""The part after which random kills stop and restarts are measured again."""
MEBIBYTE = 2**20
LONGEST_SECONDS = 120.0
"""Maximum time without a step."""


def recipe(steps: int, folder: Path, max_mb: int) -> Recipe:
    """A run that saves often, trims its log and has unlimited restarts."""
    unlimited = {"max_restarts": 100_000}
    supervisors: dict[str, Any] = {
        "run": {"children": ["control", "learner", "rollouts"], **unlimited},
        "control": {
            "children": [
                "metrics",
                "checkpointer",
                "evaluator",
                "batcher",
                "example_source",
                "task_source",
                "staleness_gate",
            ],
            **unlimited,
        },
        "learner": {"children": ["trainer"], **unlimited},
        "rollouts": {
            "children": ["inference_worker", "session_manager", "reward_worker", "rollout_worker"],
            **unlimited,
        },
    }
    return msgspec.convert(
        {
            "run": RUN,
            "steps": steps,
            "model": "embedded",
            "folder": str(folder),
            "task": {"dataset": "arithmetic", "agent": AGENT, "reward": "gsm8k", "dump_to_file": True},
            "algorithm": {"name": "grpo", "group_size": GROUP_SIZE},
            "staleness_gate": {"max_staleness": 8, "max_concurrent": 8},
            "trainer": {"batch_size": BATCH_SIZE},
            "evaluation": {"tasks": 0},
            "checkpoint": {"every_steps": 5},
            "log": {"max_mb": max_mb},
            "supervisors": supervisors,
        },
        Recipe,
    )


@dataclass
class LogCounts:
    """Counts of the events in the log so far."""

    twice: int = 0
    steps: int = 0
    first: int = 1
    pids: dict[str, int] = field(default_factory=dict)
    deaths: Counter[str] = field(default_factory=Counter)
    counted: frozenset[str] = frozenset()
    """One actor per process, so that a process failure counts once."""
    exported: set[str] = field(default_factory=set)
    trained: set[str] = field(default_factory=set)
    trained_twice: int = 0
    restarted: set[str] = field(default_factory=set)
    """Actors of `control` that have announced themselves since it was killed."""
    decided: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def apply(self, event: Event) -> None:
        """Count an event."""
        if isinstance(event, ActorStarted):
            self.pids[event.process] = event.pid
            self.restarted |= {event.actor} if event.process == "control" else set()
        elif isinstance(event, ActorFailed):
            self.deaths[event.process] += event.actor in self.counted
        elif isinstance(event, StepCompleted):
            self.steps = max(self.steps, event.step)
        elif isinstance(event, LogTrimmed):
            self.first = event.first
        elif isinstance(event, TrajectoryExported):
            self.twice += event.trajectory.episode in self.exported
            self.exported.add(event.trajectory.episode)
        elif isinstance(event, BatchFormed):
            members = {member.episode for group in event.groups for member in group}
            self.trained_twice += len(members & self.trained)
            self.trained |= members
        elif isinstance(event, RunFinished):
            self.over.set()
        if isinstance(event, BatchFormed | CapacityGranted):
            self.decided.set()

    def totals(self) -> dict[str, Any]:
        """Totals of episodes and deaths."""
        return {
            "steps": self.steps,
            "episodes": len(self.exported),
            "exported_twice": self.twice,
            "trained": len(self.trained),
            "trained_twice": self.trained_twice,
            "deaths": dict(self.deaths),
        }


async def follow(bus: NatsBus, counts: LogCounts) -> None:
    """Count the events of the log as it grows."""
    kinds = {kind.subject: kind for kind in KINDS}
    async for envelope in bus.log(follow=True):
        message = envelope.open(kinds[envelope.subject])
        assert isinstance(message, Event)
        counts.apply(message)


def read_memory(folder: RunFolder, launcher: int, counts: LogCounts) -> dict[str, Any]:
    """Memory of each process in MiB, the store on disk, and the server's consumers."""
    figures: dict[str, Any] = {"episodes": len(counts.exported), "log_begins": counts.first}
    tree = {name: pid for name, pid in counts.pids.items() if name in KILLED_PROCESSES}
    for name, pid in {"launcher": launcher, **tree, "nats-server": server_pid(folder)}.items():
        with suppress(psutil.NoSuchProcess):
            figures[name] = round(psutil.Process(pid).memory_info().rss / MEBIBYTE, 1)
    figures["store_mb"] = round(size_of(folder.nats / "store") / MEBIBYTE, 2)
    figures["snapshots_kb"] = round(size_of(folder.snapshots) / 1024, 1)
    with (
        suppress(OSError),
        urllib.request.urlopen(f"{monitoring_url(folder)}/jsz", timeout=5) as answer,  # noqa: S310
    ):
        figures["consumers"] = json.loads(answer.read())["consumers"]
    return figures


def size_of(folder: Path) -> int:
    """Bytes in files below a folder."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def server_pid(folder: RunFolder) -> int:
    """Process id of the run's NATS server."""
    return int(next(folder.nats.glob("nats-server_*.ports")).stem.rpartition("_")[2])


def monitoring_url(folder: RunFolder) -> str:
    """Monitoring URL of the run's NATS server."""
    return str(json.loads(next(folder.nats.glob("nats-server_*.ports")).read_text())["monitoring"][0])


async def kill_at_random(counts: LogCounts, rng: random.Random, seconds: float) -> None:
    """Kill random processes at random intervals until cancelled."""
    while True:
        await asyncio.sleep(rng.uniform(0.5, 1.5) * seconds)
        victim = rng.choice(KILLED_PROCESSES)
        with suppress(ProcessLookupError, KeyError):
            os.kill(counts.pids[victim], signal.SIGKILL)


async def measure_restarts(counts: LogCounts, actors: int, times: int) -> list[float]:
    """Kill `control` `times` times; seconds each until all its actors serve and one has published a decision."""
    found = []
    for _ in range(times):
        counts.restarted.clear()
        killed = time.perf_counter()
        os.kill(counts.pids["control"], signal.SIGKILL)
        async with asyncio.timeout(LONGEST_SECONDS):
            while len(counts.restarted) < actors:  # noqa: ASYNC110 - it is in another process
                await asyncio.sleep(0.005)
            counts.decided.clear()
            await counts.decided.wait()
        found.append(round(time.perf_counter() - killed, 2))
        await asyncio.sleep(1.0)
    return found


async def wait_for_step(counts: LogCounts, steps: int) -> None:
    """Wait until a step is completed."""
    while counts.steps < steps:
        before = counts.steps
        async with asyncio.timeout(LONGEST_SECONDS):
            while counts.steps == before:  # noqa: ASYNC110 - it is in another process
                await asyncio.sleep(0.02)


async def measure(
    plan: Recipe, folder: RunFolder, launcher: int, arguments: argparse.Namespace, counts: LogCounts
) -> dict[str, Any]:
    """Measure a run from its first step to its last but one."""
    steps = plan.steps
    while not (folder.path / "bus.json").exists():  # noqa: ASYNC110 - it is another process
        await asyncio.sleep(0.05)
    address = folder.server()
    bus = await NatsBus.connect(address.url, address.run, name="benchmark", token=address.token)
    lines: list[dict[str, Any]] = []
    seconds: dict[str, list[float]] = {}
    reading = asyncio.create_task(follow(bus, counts))
    actors = len(actors_of_process(plan, "control"))
    rng = random.Random(arguments.seed)
    began = time.monotonic()
    killing: asyncio.Task[None] | None = None
    try:
        for part in range(1, PARTS):
            await wait_for_step(counts, min(max(steps * part // PARTS, 1), steps - 1))
            if part == PARTS // 10:
                seconds["at_10_percent"] = await measure_restarts(counts, actors, arguments.restarts)
            elif part == LAST_KILLING_PART:
                seconds["at_90_percent"] = await measure_restarts(counts, actors, arguments.restarts)
            if PARTS // 10 <= part < LAST_KILLING_PART:
                killing = killing or asyncio.create_task(kill_at_random(counts, rng, arguments.kill_seconds))
            elif killing is not None:
                killing.cancel()
            lines.append({**read_memory(folder, launcher, counts), "seconds": round(time.monotonic() - began, 1)})
        await counts.over.wait()
    finally:
        reading.cancel()
        if killing is not None:
            killing.cancel()
        await bus.close()
    medians = {where: statistics.median(found) for where, found in seconds.items()}
    return {"restart_seconds": medians, "all_restarts": seconds, "lines": lines}


def launch(folder: RunFolder, output: BinaryIO) -> subprocess.Popen[bytes]:
    """Start the run in a separate process."""
    script = str(Path(__file__).with_name("bounded_log_run.py"))
    return subprocess.Popen([sys.executable, script, str(folder.path)], stdout=output, stderr=output, cwd=ROOT)


async def benchmark(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run to the end and return all figures."""
    steps = max(arguments.episodes // EPISODES_A_STEP, 1)
    plan = recipe(steps, folder, arguments.max_mb)
    run_folder = RunFolder(folder / RUN)
    run_folder.create(plan)
    run_folder.model.mkdir()
    write_tokenizer(train_tokenizer(), run_folder.model)
    with (folder / "output.txt").open("wb") as output:
        launcher = launch(run_folder, output)
        try:
            counts = LogCounts(
                counted=frozenset(next(iter(actors_of_process(plan, name))) for name in KILLED_PROCESSES)
            )
            measuring = asyncio.create_task(measure(plan, run_folder, launcher.pid, arguments, counts))
            ending = asyncio.create_task(asyncio.to_thread(launcher.wait))
            await asyncio.wait({measuring, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not measuring.done():
                raise RuntimeError(f"the run ended with exit status {launcher.returncode} before its last step")
            figures = await measuring
            figures["exit_status"] = await asyncio.wait_for(ending, LONGEST_SECONDS)
        except BaseException:
            sys.stderr.write((folder / "output.txt").read_text()[-4000:])
            raise
        finally:
            if launcher.poll() is None:
                launcher.terminate()
                launcher.wait()
    return {**counts.totals(), **figures}


def show(figures: dict[str, Any]) -> None:
    """Print the table and the totals of episodes."""
    names = ("launcher", *KILLED_PROCESSES, "nats-server")
    header = ["episodes", *(f"{name} MB" for name in names), "store MB", "snapshots KB", "consumers", "log begins", "s"]
    keys = ("episodes", *names, "store_mb", "snapshots_kb", "consumers", "log_begins", "seconds")
    print(table(header, [[line.get(key, "-") for key in keys] for line in figures["lines"]]))
    print()
    print(f"seconds to restart control: {figures['restart_seconds']}, each: {figures['all_restarts']}")
    print(
        f"{figures['steps']} steps, {figures['episodes']} episodes exported, {figures['exported_twice']} twice;"
        f" {figures['trained']} trained, {figures['trained_twice']} twice; deaths: {figures['deaths']}; exit"
        f" {figures['exit_status']}"
    )


def main() -> None:
    """Measure, print, append to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short run without history, as a smoke test")
    parser.add_argument("--episodes", type=int, default=20_000, help=f"to train, {EPISODES_A_STEP} a step")
    parser.add_argument("--max-mb", type=int, default=8, help="log.max_mb of the run")
    parser.add_argument("--kill-seconds", type=float, default=10.0, help="between two deaths, on average")
    parser.add_argument("--restarts", type=int, default=3, help="measured restarts of `control`, at each of two points")
    parser.add_argument("--seed", type=int, default=1, help="of the random kills")
    parser.add_argument("--no-history", action="store_true", help="print only")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.episodes, arguments.max_mb, arguments.restarts, arguments.no_history = 1920, 0, 1, True
    with tempfile.TemporaryDirectory() as temporary, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(benchmark(arguments, Path(temporary)))
    show(figures)
    if not arguments.no_history:
        append("bounded_log", figures)
    if figures["exported_twice"] or figures["trained_twice"] or figures["exit_status"]:
        sys.exit("an episode was exported or trained twice, or the run failed: see above")


if __name__ == "__main__":
    main()
