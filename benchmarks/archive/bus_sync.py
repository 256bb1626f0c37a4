"""Cost of each `bus.sync` setting, and confirmed events lost in a simulated power failure.

    PYTHONPATH=benchmarks python benchmarks/archive/bus_sync.py            # a minute or two
    PYTHONPATH=benchmarks python benchmarks/archive/bus_sync.py --quick    # seconds, and no line in the history

Costs are measured on the disk of the temporary folder (TMPDIR). The power failure is simulated: the server's store lies
on a small ext4 file system over a file, and a copy of that file at a random moment is mounted and read
(`lossy_disk.py`). Drives that confirm writes before they are durable, and bad sectors, are not simulated. Without root
and loop devices this half is skipped.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import history
from lossy_disk import can_lose_power, lossy_disk, mounted

from areal_bus.base import Stamp
from areal_bus.durability import sync_store
from areal_bus.log_check import check_log
from areal_bus.message import Event
from areal_bus.nats import NatsBus
from areal_bus.server import EmbeddedServer

SYNCS = ("5s", "1s", "always")
RUN = "bench"
TOGETHER = 64
BODY = 1024
SLOW_FACTOR = 8
"""`always` gets this fraction of the events."""


class Appended(Event):
    """An event of about 1 KB."""

    subject: ClassVar[str] = "bench.appended"
    number: int
    load: bytes


@asynccontextmanager
async def served(store: Path, sync: str) -> AsyncIterator[NatsBus]:
    """A bus on a separate server."""
    server = await EmbeddedServer.start(store, sync_interval=sync)
    try:
        bus = await NatsBus.connect(server.url, RUN, name="bench", token=server.token, kinds=[Appended])
        try:
            yield bus
        finally:
            await bus.close()
    finally:
        await server.stop()


async def append(bus: NatsBus, number: int) -> int:
    """Publish an event; returns when it is confirmed."""
    stamp = Stamp(id=f"e{number}", sender="bench", time=time.time())
    return await bus.publish(Appended(number=number, load=b"x" * BODY), stamp)


async def costs(sync: str, events: int) -> dict[str, Any]:
    """Appends sequentially, and with many under way."""
    events = events // SLOW_FACTOR if sync == "always" else events
    with tempfile.TemporaryDirectory() as folder:
        async with served(Path(folder) / "nats", sync) as bus:
            seconds = []
            for number in range(events):
                started = time.perf_counter()
                await append(bus, number)
                seconds.append(time.perf_counter() - started)
            started = time.perf_counter()
            for first in range(events, 2 * events, TOGETHER):
                await asyncio.gather(*(append(bus, number) for number in range(first, first + TOGETHER)))
            together = time.perf_counter() - started
        folder_sync = time.perf_counter()
        sync_store(Path(folder))
        folder_sync = time.perf_counter() - folder_sync
    seconds.sort()
    return {
        "sync": sync,
        "one_at_a_time_per_second": events / sum(seconds),
        "p50_ms": 1000 * seconds[len(seconds) // 2],
        "p99_ms": 1000 * seconds[len(seconds) * 99 // 100],
        "together_per_second": -(-events // TOGETHER) * TOGETHER / together,
        "sync_store_ms": 1000 * folder_sync,
    }


async def check_cost(events: int) -> dict[str, Any]:
    """Time that `areal-actors resume` spends on checking a log of `events` events."""
    with tempfile.TemporaryDirectory() as folder:
        async with served(Path(folder) / "nats", SYNCS[0]) as bus:
            for first in range(0, events, TOGETHER):
                await asyncio.gather(*(append(bus, number) for number in range(first, min(first + TOGETHER, events))))
            started, cpu = time.perf_counter(), time.process_time()
            found = await check_log(bus.streams, lambda _: None)
            seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        size = _bytes_of_blocks(Path(folder))
    return {
        "events": found.end,
        "megabytes": size / 1e6,
        "seconds_per_100k": seconds * 1e5 / events,
        "cpu_seconds_per_100k": cpu * 1e5 / events,
        "cpu_seconds_per_gigabyte": cpu * 1e9 / size,
    }


def _bytes_of_blocks(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.blk"))


async def losses(sync: str, trials: int, longest: float, rng: random.Random) -> dict[str, Any]:
    """Confirmed events lost in power failures, and how many of them `sync_store` had synced."""
    lost, lost_synced, seconds_lost = [], [], []
    for _ in range(trials):
        with tempfile.TemporaryDirectory() as folder, lossy_disk(Path(folder)) as disk:
            store = disk.root / "nats"
            async with served(store, sync) as bus:
                confirmed: list[float] = []
                writing = asyncio.create_task(keep_appending(bus, confirmed))
                await asyncio.sleep(rng.uniform(0.2, longest / 2))
                promised = len(confirmed)
                await asyncio.to_thread(sync_store, store)
                await asyncio.sleep(rng.uniform(0.2, longest / 2))
                there, at = len(confirmed), time.monotonic()
                left = await asyncio.to_thread(disk.lose_power)
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)
            end = await events_left(left, sync)
            lost.append(max(there - end, 0))
            lost_synced.append(max(promised - end, 0))
            seconds_lost.append(at - confirmed[end] if end < there else 0.0)
    return {
        "trials": trials,
        "lost_max": max(lost),
        "lost_mean": sum(lost) / trials,
        "seconds_lost_max": max(seconds_lost),
        "lost_after_sync_store": sum(lost_synced),
    }


async def keep_appending(bus: NatsBus, confirmed: list[float]) -> None:
    """Append sequentially and record the time of each confirmation."""
    while True:
        await append(bus, len(confirmed))
        confirmed.append(time.monotonic())


async def events_left(device: Path, sync: str) -> int:
    """Last valid event of the log after the failure; 0 without a log."""
    with mounted(device) as root:
        async with served(root / "nats", sync) as bus:
            return (await check_log(bus.streams, lambda _: None)).end


async def measure(*, quick: bool) -> list[dict[str, Any]]:
    """A row for each setting."""
    rng = random.Random(0)
    rows = []
    for sync in SYNCS:
        row = await costs(sync, 400 if quick else 8000)
        if can_lose_power():
            row |= await losses(sync, 1 if quick else 8, 1.0 if quick else 8.0, rng)
        rows.append(row)
    return rows


def main() -> None:
    """Measure, print, append to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smoke test, no history")
    parser.add_argument("--check", action="store_true", help="only the cost of the log check")
    options = parser.parse_args()
    quick, check_only = options.quick, options.check
    busy, started = history.busy_seconds(), time.perf_counter()
    rows = [] if check_only else asyncio.run(measure(quick=quick))
    check = asyncio.run(check_cost(2_000 if quick else 100_000))
    print(history.table(list(check), [list(check.values())]))
    if rows:
        print(history.table(list(rows[0]), [list(row.values()) for row in rows]))
    if rows and not can_lose_power():
        print("no power failure was simulated: that needs root and loop devices")
    if not quick:
        share = (history.busy_seconds() - busy) / ((time.perf_counter() - started) * history.machine()["cores"])
        measured = {"events_of_bytes": BODY, "machine_busy_share": share, "check": check}
        history.append("bus_sync", {**measured, "settings": rows} if rows else measured)


if __name__ == "__main__":
    main()
