"""Monitors of a run, for monitors.py: NUMBER connections that receive every message, each after a pause of SECONDS.

    PYTHONPATH=benchmarks python benchmarks/archive/monitors_process.py RUN_FOLDER NUMBER SECONDS

They are plain clients of NATS with the run's read-only address; the number of received messages is written to standard
output at the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import nats
from nats.aio.msg import Msg

START_SECONDS = 120.0


async def watch(address: dict[str, str], pause: float) -> int:
    """Receive messages until the server is gone; returns their number."""
    gone = asyncio.Event()

    async def closed() -> None:
        gone.set()

    client = await nats.connect(
        address["url"],
        token=address["token"] or None,
        inbox_prefix="_INBOX.monitor",
        allow_reconnect=False,
        closed_cb=closed,
    )
    received = 0

    async def note(_: Msg) -> None:
        nonlocal received
        received += 1
        if pause:
            await asyncio.sleep(pause)

    await client.subscribe(f"areal.{address['run']}.>", cb=note)
    await gone.wait()
    return received


async def main(folder: Path, number: int, pause: float) -> None:
    """Wait for the run, then watch it with all connections."""
    file, end = folder / "monitor.json", time.monotonic() + START_SECONDS
    while not file.exists():
        if time.monotonic() > end:
            raise SystemExit(f"{file} did not appear within {START_SECONDS:.0f} s")
        await asyncio.sleep(0.05)
    address = json.loads(file.read_text(encoding="utf-8"))
    sys.stdout.write(json.dumps(await asyncio.gather(*(watch(address, pause) for _ in range(number)))))


if __name__ == "__main__":
    os.nice(19)
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
