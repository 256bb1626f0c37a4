"""Disturbs live runs whose workers are on another host, or whose bus is a cluster, and audits them.

    python benchmarks/join_leave.py [SCENARIO ...] [--joins 50] [--seed 0] [--quick] [--no-history]

`undisturbed` is the small run beside which the others are shown. `joins`: workers join it and leave it, five at a time,
each a random number of steps after its start, or while it starts; half by SIGTERM to `areal-actors join`, half by
`kill -9` of it and its worker, as a lost host; then the run is interrupted. `cable`: the main recipe with all workers
and the gateway on the other host, whose cable is pulled for 20 s. `leader`, `paused` and `majority`: the bus is a
cluster of three NATS servers; the leader of the log is killed and started again, stopped by SIGSTOP for 20 s, or killed
with another one for 20 s. As root on Linux the other host is a network namespace, elsewhere it has a home and temporary
folder of its own. Every weight version is also recomputed from the log, except after `joins`, whose run is long.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from history import ROOT, SMALL, append, parse_arguments, table
from rich.console import Console

from areal_actors.audit.audit import Audit
from areal_actors.folder.connections import connect_to_run, open_store
from areal_actors.folder.run_folder import RunFolder, ServerAddress
from areal_actors.messages import (
    ActorStarted,
    BusRestarted,
    EpisodeAbandoned,
    EvaluationCompleted,
    InteractionsRecorded,
    RunFinished,
    StepCompleted,
    TrajectoryExported,
    WorkerJoined,
    recorded_calls,
)
from areal_actors.reader.audit_command import audit_run
from areal_bus.recorded import export_log

sys.path.append(str(ROOT / "tests"))
from support.live_run import LiveRun
from support.nats_cluster import NatsCluster
from support.other_host import ISOLATED, Joiner, OtherHost

RUN = "gsm8k-grpo"
OUTAGE_SECONDS = 20.0
ROLES = ("rollout_worker", "inference_worker", "reward_worker")
ALONE = (*(f"actors.{role}.count=0" for role in ROLES), "gateway.joined=1")
LONGEST_STAY = 10
"""Steps after its start at which a joined worker leaves at the latest."""
AT_ONCE = 5
MOST_STEPS = 100_000
"""Steps of the run that workers join, which is interrupted when all have left."""
INTERRUPTED = 130
POLL_SECONDS = 0.1
READ_SECONDS = 10.0
"""Time for the events of a run that has ended to arrive."""
QUICK = {"joins": 2, "steps": 6, "cable_steps": 4, "scenarios": ["joins", "leader"]}


class Scene:
    """A run and what can be disturbed."""

    def __init__(self, run: LiveRun, host: OtherHost, cluster: NatsCluster | None, options: argparse.Namespace) -> None:
        self.run, self.host, self.cluster, self.options = run, host, cluster, options
        self.random = Random(options.seed)
        self.left = 0
        """Workers that left while the run went on."""
        self.killed = 0
        """Those of them whose host was lost."""

    @property
    def step(self) -> int:
        """Number of steps so far."""
        return len(self.run.received(StepCompleted))

    @property
    def running(self) -> bool:
        """True until the run has ended."""
        return self.run.process.poll() is None

    def serves(self, joiner: Joiner) -> bool:
        """True if the worker of this `areal-actors join` has started."""
        started = {event.actor for event in self.run.received(ActorStarted)}
        return any(f"' as {worker}\n" in joiner.output() for worker in started)

    async def credential(self) -> str:
        """Returns the file with the credential, on the other host."""
        while not (file := self.run.folder / "join.json").exists():
            if not self.running:
                raise SystemExit(self.run.output())
            await asyncio.sleep(POLL_SECONDS)
        return str(shutil.copy(file, self.host.folder / "join.json"))

    async def reach(self, step: int) -> None:
        """Wait for a step, or the end of the run."""
        while self.step < step and self.running:  # noqa: ASYNC110 - the steps are another process's
            await asyncio.sleep(POLL_SECONDS)


async def nothing(scene: Scene) -> None:
    """The run is left alone."""


async def joins(scene: Scene) -> None:
    """Workers join and leave, a few at a time, each a random number of steps after its start or while it starts.

    Then the run is ended.
    """
    credential, slots = await scene.credential(), asyncio.Semaphore(AT_ONCE)
    await scene.reach(1)
    stays = []
    for number in range(scene.options.joins):
        steps = -1 if number % 4 > 1 and number % 3 == 0 else scene.random.randint(0, LONGEST_STAY)
        stays.append(_stay(scene, slots, credential, steps, lost=number % 2 == 1, role=ROLES[number // 2 % len(ROLES)]))
    await asyncio.gather(*stays)
    await scene.reach(scene.step + 2)
    scene.run.process.terminate()


async def _stay(scene: Scene, slots: asyncio.Semaphore, credential: str, steps: int, *, lost: bool, role: str) -> None:
    async with slots:
        joiner = scene.host.join("--credential", credential, "--role", role)
        while scene.running and (steps >= 0 or "joined run" not in joiner.output()) and not scene.serves(joiner):  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
        await scene.reach(scene.step + max(steps, 0))
        if scene.running:
            scene.left += 1
            scene.killed += lost
        if lost:
            _lose(joiner)
        else:
            joiner.process.terminate()
        await asyncio.to_thread(joiner.process.wait)


def _lose(joiner: Joiner) -> None:
    with contextlib.suppress(StopIteration):  # it may not have started yet
        joiner.worker().kill()
    joiner.process.kill()


async def cable(scene: Scene) -> None:
    """All workers and the gateway lose their network."""
    credential = await scene.credential()
    for role in (*ROLES, "gateway"):
        scene.host.join("--credential", credential, "--role", role)
    await scene.reach(scene.options.cable_steps // 2)
    if ISOLATED:
        scene.host.pull_cable(out=True)
        await asyncio.sleep(OUTAGE_SECONDS)
        scene.host.pull_cable(out=False)


async def leader(scene: Scene) -> None:
    """The leader of the log is killed, and started again."""
    assert scene.cluster is not None
    await scene.reach(scene.options.steps // 4)
    scene.cluster.kill(name := await scene.cluster.leader(RUN))
    await scene.reach(scene.options.steps // 2)
    scene.cluster.start(name)


async def paused(scene: Scene) -> None:
    """The leader of the log stands still."""
    assert scene.cluster is not None
    await scene.reach(scene.options.steps // 4)
    scene.cluster.pause(name := await scene.cluster.leader(RUN), stopped=True)
    await asyncio.sleep(OUTAGE_SECONDS)
    scene.cluster.pause(name, stopped=False)


async def majority(scene: Scene) -> None:
    """Two of three servers are killed, and started again."""
    assert scene.cluster is not None
    await scene.reach(scene.options.steps // 4)
    first = await scene.cluster.leader(RUN)
    gone = [first, next(name for name in scene.cluster.names if name != first)]
    for name in gone:
        scene.cluster.kill(name)
    await asyncio.sleep(OUTAGE_SECONDS)
    for name in gone:
        scene.cluster.start(name)


Disturb = Callable[[Scene], Awaitable[None]]
DISTURBANCES: dict[str, Disturb] = {disturb.__name__: disturb for disturb in (joins, cable, leader, paused, majority)}
SCENARIOS: dict[str, Disturb] = {"undisturbed": nothing, **DISTURBANCES}
IN_CLUSTER = ("leader", "paused", "majority")


class Outcome(msgspec.Struct, frozen=True):
    """A run that has ended, with its audit."""

    name: str
    status: int
    wanted: int
    steps: int
    joined: int
    left: int
    """Workers that left before the end."""
    killed: int
    """Those of them that were killed with their `areal-actors join`."""
    redelivered: int
    """Attempts that began on another worker again."""
    retried: int
    lost: int
    """Episodes abandoned after all attempts, and groups that never ended."""
    twice: int
    equal: bool
    """True if every weight version was recomputed from the log to the same bytes."""
    accuracy: tuple[float, ...]
    """Accuracy on held-out tasks, sampled, before and after."""
    outage_seconds: float
    """Longest time without a leader of the log."""
    step_seconds: float
    audit: str

    def passed(self) -> bool:
        """True if the steps are exact, and nothing was lost or trained twice."""
        return (
            self.status == (0 if self.name != "joins" else INTERRUPTED)
            and self.steps == self.wanted
            and not self.lost
            and not self.twice
        )


async def measure(name: str, options: argparse.Namespace, folder: Path) -> Outcome:
    """Run one scenario to its end."""
    steps = {"cable": options.cable_steps, "joins": MOST_STEPS}.get(name, options.steps)
    async with AsyncExitStack() as stack:
        host = stack.enter_context(OtherHost(folder / "other", hidden=folder / "runs"))
        cluster = await stack.enter_async_context(NatsCluster(folder / "cluster")) if name in IN_CLUSTER else None
        settings = [f"steps={steps}", "checkpoint.every_steps=20"]
        settings += SMALL if name != "cable" or options.quick else ["profile=embedded"]
        settings += [f"bus.url={cluster.url}", "bus.replicas=3"] if cluster else []
        settings += (
            [f"bus.host={host.run_address}", f"gateway.host={host.run_address}"] if name in ("joins", "cable") else []
        )
        settings += ALONE if name == "cable" else ()
        run = LiveRun(folder / "runs", *settings, small=False)
        stack.callback(run.abort)
        async with run.listening():
            scene = Scene(run, host, cluster, options)
            disturbing = asyncio.create_task(SCENARIOS[name](scene))
            await scene.reach(1)
            began = time.monotonic()
            await asyncio.to_thread(run.process.wait)
            seconds = time.monotonic() - began
            await disturbing
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(_read(run), READ_SECONDS)
            log = folder / "log"
            await _export(run, cluster, log)
            recompute = name != "joins" and not options.no_recompute
            found = await audit_run(str(log), folder=folder, recompute=recompute, console=Console(stderr=True))
            return _outcome(name, scene, found, steps, seconds)


async def _read(run: LiveRun) -> None:
    """Wait until the end of the log has been received."""
    while not run.received(RunFinished):  # noqa: ASYNC110 - it arrives over the bus
        await asyncio.sleep(POLL_SECONDS)


async def _export(run: LiveRun, cluster: NatsCluster | None, log: Path) -> None:
    folder = RunFolder(run.folder)
    if cluster is None:
        async with open_store(folder.nats, folder, RUN) as bus:
            await export_log(bus, log)
    else:
        await cluster.until_ready()
        async with connect_to_run(ServerAddress(url=cluster.url, run=RUN, pid=0), folder) as bus:
            await export_log(bus, log)


def _outcome(name: str, scene: Scene, audit: Audit, steps: int, seconds: float) -> Outcome:
    run = scene.run
    sessions: dict[str, set[str]] = defaultdict(set)
    for event in (*run.received(InteractionsRecorded), *run.received(TrajectoryExported)):
        for call in recorded_calls(event):
            sessions[call.episode].add(call.session)
    abandoned: list[Any] = run.received(EpisodeAbandoned)
    again = sum(len(found) - 1 for found in sessions.values())
    outcome = Outcome(
        name=name,
        status=run.process.returncode,
        wanted=steps if name != "joins" else len(run.received(StepCompleted)),
        steps=audit.steps,
        joined=len(run.received(WorkerJoined)),
        left=scene.left,
        killed=scene.killed,
        redelivered=max(again - len(abandoned), 0),
        retried=len(abandoned),
        lost=audit.count_lost() + sum(not event.work.attempts_left for event in abandoned),
        twice=audit.twice(),
        equal=bool(audit.versions) and not audit.all_faults(),
        accuracy=tuple(event.accuracy for event in run.received(EvaluationCompleted) if event.mode == "sampled"),
        outage_seconds=max((event.seconds for event in run.received(BusRestarted)), default=0.0),
        step_seconds=seconds / max(audit.steps - 1, 1),
        audit=audit.verdict(),
    )
    for fault in audit.all_faults()[:10]:
        print(f"    FAULT  {fault}", flush=True)
    if not outcome.passed():
        print(run.output()[-4000:], flush=True)
    return outcome


COUNTS = ("joined", "left", "killed", "redelivered", "retried", "lost", "twice")
HEADER = ["run", "steps", *COUNTS, "no leader s", "accuracy", "s per step", "audit"]


def row(one: Outcome) -> list[object]:
    """A line of the table."""
    accuracy = " to ".join(f"{found:.2f}" for found in one.accuracy[:1] + one.accuracy[-1:])
    counts = [one.joined, one.left, one.killed, one.redelivered, one.retried, one.lost, one.twice]
    return [
        one.name,
        f"{one.steps} of {one.wanted}",
        *counts,
        f"{one.outage_seconds:.1f}",
        accuracy,
        f"{one.step_seconds:.2f}",
        one.audit,
    ]


def main() -> int:
    """Run the named scenarios; returns 1 if one of them lost anything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "scenarios",
        nargs="*",
        metavar="SCENARIO",
        default=list(SCENARIOS),
        help=f"{', '.join(SCENARIOS)} (default: all)",
    )
    parser.add_argument("--joins", type=int, default=50, help="workers that join and leave (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=60, help="steps of a small run (default: %(default)s)")
    parser.add_argument("--cable-steps", type=int, default=24, help="steps of the main recipe (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-recompute", action="store_true", help="do not recompute weight versions from the log")
    options = parse_arguments(parser, QUICK)
    if unknown := set(options.scenarios) - set(SCENARIOS):
        parser.error(f"there is no scenario {min(unknown)!r}; there are {', '.join(SCENARIOS)}")
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="areal-join-leave-") as temporary:
        for name in options.scenarios:
            (folder := Path(temporary) / name).mkdir()
            outcomes.append(asyncio.run(measure(name, options, folder)))
            print("  ".join(map(str, row(outcomes[-1]))), flush=True)
    print("\n" + table(HEADER, [row(outcome) for outcome in outcomes]))
    if not options.no_history:
        settings = {"joins": options.joins, "seed": options.seed, "namespaces": ISOLATED}
        append("join_leave", {**settings, "runs": [msgspec.to_builtins(outcome) for outcome in outcomes]})
    return int(not all(outcome.passed() for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
