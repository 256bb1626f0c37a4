"""Opens thousands of connections without a credential to a live run that others join over the network.

    PYTHONPATH=benchmarks python benchmarks/archive/unwanted_connections.py [ATTACK ...] [--connections 10000]
        [--seconds 20] [--descriptors 1024:4096]

`idle` holds connections to the port of the run's files, `slow` sends the head of a request there at a byte per second,
`bus` holds connections to the bus. Each goes on for some seconds and opens connections again that were closed. The
rollout workers of the run are joined ones: one from before the attack, and one that joins in the middle of it. The run
has the soft and hard limit of descriptors that most systems have.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing as mp
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from history import ROOT, SMALL, append, parse_arguments, table

sys.path.append(str(ROOT / "tests"))
from support.live_run import LiveRun

from areal_actors.messages import RunFinished, StepCompleted, WorkerJoined, WorkerLeft

ATTACKS = ("idle", "slow", "bus")
STEPS = 100_000
SLOW_HEAD = b"GET /folders/code HTTP/1.1\r\nHost: run\r\nX: "
AT_ONCE = 500
"""Connections that are being opened at a time."""
START_SECONDS = 120.0
QUICK = {"attacks": ["idle"], "connections": 1200, "seconds": 6.0, "descriptors": "512:1024"}


class Refusals(msgspec.Struct):
    """Counts of an attack, and the time until its connections were closed."""

    opened: int = 0
    failed: int = 0
    """Connections that were not accepted."""
    closed: int = 0
    answered: int = 0
    """Those of them that were sent the reason."""
    seconds: list[float] = []


async def _hold(port: int, until: float, opening: asyncio.Semaphore, found: Refusals, *, slow: bool) -> None:
    """Keep one connection open, and open it again whenever it is closed."""
    loop = asyncio.get_running_loop()
    while time.monotonic() < until:
        try:
            async with opening, asyncio.timeout(10):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except (OSError, TimeoutError):
            found.failed += 1
            await asyncio.sleep(0.5)
            continue
        found.opened += 1
        began = loop.time()
        dripping = asyncio.create_task(_drip(writer)) if slow else None
        try:
            async with asyncio.timeout(max(until - time.monotonic(), 0)):
                content = await reader.read()
            found.closed += 1
            found.answered += bool(content.partition(b"\n")[2] if content.startswith(b"INFO") else content)
            found.seconds.append(loop.time() - began)
        except OSError:
            found.closed += 1
            found.seconds.append(loop.time() - began)
        except TimeoutError:
            pass
        finally:
            if dripping is not None:
                dripping.cancel()
            writer.close()
        await asyncio.sleep(0.2)


async def _drip(writer: asyncio.StreamWriter) -> None:
    writer.write(SLOW_HEAD)
    with contextlib.suppress(OSError):
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(1)


async def _attack(port: int, seconds: float, connections: int, *, slow: bool) -> Refusals:
    found, opening = Refusals(seconds=[]), asyncio.Semaphore(AT_ONCE)
    until = time.monotonic() + seconds
    await asyncio.gather(*(_hold(port, until, opening, found, slow=slow) for _ in range(connections)))
    return found


def attacker(orders: Connection) -> None:
    """Runs in a process with many descriptors."""
    while order := orders.recv():
        port, seconds, connections, slow = order
        orders.send(msgspec.to_builtins(asyncio.run(_attack(port, seconds, connections, slow=slow))))


class Outcome(msgspec.Struct):
    """Effects of an attack."""

    attack: str
    refusals: Refusals
    steps: int
    """Steps of the run within the attack."""
    alive: bool
    finished: bool
    """True if the log of a run that ended has its end."""
    lost: int
    """Workers that lost their place."""
    join_seconds: float | None
    """Time in which a worker joined within the attack."""
    after: int
    """Steps of the run within as many seconds after it."""
    output: str = ""


@contextlib.asynccontextmanager
async def _joined(run: LiveRun, folder: Path) -> AsyncIterator[subprocess.Popen[bytes]]:
    while not (credential := run.folder / "join.json").exists():
        assert run.process.poll() is None, run.output()
        await asyncio.sleep(0.1)
    url = urlsplit(json.loads(credential.read_bytes())["url"])
    address = f"nats://{url.hostname}:{url.port}/{run.folder.name}"
    with (folder / f"join-{time.monotonic()}.txt").open("wb") as output:
        command = [
            sys.executable,
            "-m",
            "areal_actors",
            "join",
            address,
            "--credential",
            str(credential),
            "--role",
            "rollout_worker",
        ]
        environment = {**os.environ, "TMPDIR": str(folder)}  # a killed worker leaves its folder
        process = subprocess.Popen(  # noqa: ASYNC220
            command, cwd=ROOT, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def measure(attack: str, options: argparse.Namespace, folder: Path, orders: Connection) -> Outcome:
    """Start a run, attack it, and let it go on as long again."""
    port = options.port
    settings = ["bus.host=127.0.0.1", f"bus.objects_port={port}", "actors.rollout_worker.count=0", f"steps={STEPS}"]
    run = LiveRun(folder / "runs", *SMALL, *settings, small=False)
    try:
        async with run.listening(START_SECONDS), _joined(run, folder):
            await run.until(StepCompleted, 2, START_SECONDS)
            bus_port = urlsplit(json.loads((run.folder / "bus.json").read_bytes())["url"]).port
            before, began = len(run.received(StepCompleted)), time.monotonic()
            orders.send((bus_port if attack == "bus" else port, options.seconds, options.connections, attack == "slow"))
            await asyncio.sleep(options.seconds / 4)
            async with _joined(run, folder):
                join_seconds = None
                asked = time.monotonic()
                while time.monotonic() < began + options.seconds or not orders.poll():
                    await asyncio.sleep(0.05)
                    if join_seconds is None and len(run.received(WorkerJoined)) > 1:
                        join_seconds = time.monotonic() - asked
                refusals = msgspec.convert(orders.recv(), Refusals)
                steps = len(run.received(StepCompleted)) - before
                await asyncio.sleep(options.seconds)
                return Outcome(
                    attack=attack,
                    refusals=refusals,
                    steps=steps,
                    alive=run.process.poll() is None,
                    finished=bool(run.received(RunFinished)),
                    lost=len(run.received(WorkerLeft)),
                    join_seconds=join_seconds,
                    after=len(run.received(StepCompleted)) - before - steps,
                    output="" if run.process.poll() is None else run.output()[-2000:],
                )
    finally:
        run.abort()


HEADER = [
    "attack",
    "opened",
    "not accepted",
    "closed",
    "with a reason",
    "s until closed: median",
    "most",
    "run",
    "steps",
    "after",
    "lost",
]


def row(found: Outcome) -> list[object]:
    """A line of the table."""
    refusals = found.refusals
    seconds = sorted(refusals.seconds) or [float("nan")]
    run = "goes on" if found.alive else "ended" + ("" if found.finished else ", no RunFinished")
    joined = "no" if found.join_seconds is None else f"{found.join_seconds:.1f} s"
    closing = [f"{statistics.median(seconds):.3f}", f"{seconds[-1]:.1f}"]
    counts = [refusals.opened, refusals.failed, refusals.closed, refusals.answered]
    return [found.attack, *counts, *closing, f"{run}; joins in {joined}", found.steps, found.after, found.lost]


def main() -> int:
    """Run the attacks; returns 1 if one of them ended its run or cost a worker its place."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "attacks", nargs="*", metavar="ATTACK", default=list(ATTACKS), help=f"{', '.join(ATTACKS)} (default: all)"
    )
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument(
        "--descriptors", default="1024:4096", help="soft and hard limit of the run (default: %(default)s)"
    )
    parser.add_argument("--port", type=int, default=28_643, help="port of the run's files (default: %(default)s)")
    options = parse_arguments(parser, QUICK)
    soft, hard = (int(limit) for limit in options.descriptors.split(":"))
    here, there = mp.Pipe()
    process = mp.get_context("fork").Process(target=attacker, args=(there,), daemon=True)
    process.start()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="areal-connections-") as temporary:
        for attack in options.attacks:
            (folder := Path(temporary) / attack).mkdir()
            outcomes.append(asyncio.run(measure(attack, options, folder, here)))
            print("  ".join(map(str, row(outcomes[-1]))), outcomes[-1].output, flush=True)
    here.send(None)
    print(
        f"\n{os.cpu_count()} cores, descriptors {soft}:{hard}\n" + table(HEADER, [row(outcome) for outcome in outcomes])
    )
    if not options.no_history:
        settings = {"connections": options.connections, "seconds": options.seconds, "descriptors": options.descriptors}
        runs = [{**msgspec.to_builtins(outcome), "refusals": row(outcome)[1:7]} for outcome in outcomes]
        append("unwanted_connections", {**settings, "runs": runs})
    return int(not all(outcome.alive and not outcome.lost for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
