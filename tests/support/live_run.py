"""A real run in real processes, for tests: start it by the command line, listen to its bus, kill parts of it, read its
log."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from areal_actors.messages import KINDS, ActorStarted
from areal_bus.message import Message
from areal_bus.nats import NatsBus
from areal_bus.server import EmbeddedServer

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "gsm8k_grpo.toml"
SMALL = (
    "profile=embedded",
    "warm_start.steps=40",
    "warm_start.tail_steps=10",
    "evaluation.tasks=10",
    "evaluation.every_steps=0",
    "trainer.batch_size=4",
    "algorithm.group_size=4",
    "staleness_gate.max_concurrent=16",
)
"""A run of a few seconds: it learns nothing, and does everything."""
PATIENT = 700.0
"""Seconds that every step of a run may take on a very busy machine, below the time limit of a test."""
BY_SUBJECT = {kind.subject: kind for kind in KINDS}


class LiveRun:
    """`areal-actors run` in a process of its own."""

    def __init__(self, folder: Path, *settings: str, recipe: Path = RECIPE, small: bool = True) -> None:
        self.folder = folder / "gsm8k-grpo"
        self.output_file = folder / "output.txt"
        folder.mkdir(parents=True, exist_ok=True)
        self._command("run", str(recipe), f"folder={folder}", *(SMALL if small else ()), *settings)

    def resume(self, *settings: str) -> None:
        """`areal-actors resume`, when it is over, from wherever its folder is now."""
        self.process.wait()
        self._command("resume", self.folder.name, *settings, "--folder", str(self.folder.parent))

    def _command(self, *words: str) -> None:
        self.events: list[tuple[int, Message]] = []
        with self.output_file.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "areal_actors", *words],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    @asynccontextmanager
    async def listening(self, seconds: float = PATIENT) -> AsyncIterator[NatsBus]:
        """Join the run's bus and keep its events in `events`."""
        address = json.loads(await self._appears(self.folder / "bus.json", seconds))
        bus = await NatsBus.connect(address["url"], address["run"], name="test", token=address["token"])
        ear = asyncio.create_task(self._listen(bus))
        try:
            yield bus
        finally:
            ear.cancel()
            await bus.close()

    async def _listen(self, bus: NatsBus) -> None:
        async for envelope in bus.log(follow=True):
            self.events.append((envelope.sequence, envelope.open(BY_SUBJECT[envelope.subject])))

    async def _appears(self, path: Path, seconds: float) -> str:
        until = time.monotonic() + seconds
        while not path.exists() or not path.read_text():
            assert self.process.poll() is None, f"the run ended with {self.process.returncode}: {self.output()}"
            assert time.monotonic() < until, f"{path} did not appear within {seconds} s"
            await asyncio.sleep(0.05)
        return path.read_text()

    def received(self, kind: type[Any]) -> list[Any]:
        """The events of a kind so far."""
        return [message for _, message in self.events if isinstance(message, kind)]

    async def until(self, kind: type[Any], count: int, seconds: float = PATIENT) -> list[Any]:
        """Wait for `count` events of a kind."""
        deadline = time.monotonic() + seconds
        while len(found := self.received(kind)) < count:
            assert self.process.poll() is None, f"the run ended with {self.process.returncode}: {self.output()}"
            assert time.monotonic() < deadline, (
                f"{len(found)} of {count} {kind.__name__} within {seconds} s: {self.output()}"
            )
            await asyncio.sleep(0.02)
        return found

    def pid_of(self, process: str) -> int:
        """The present process id of one of the run's processes."""
        return [event.pid for event in self.received(ActorStarted) if event.process == process][-1]

    def kill(self, process: str) -> int:
        """kill -9."""
        pid = self.pid_of(process)
        os.kill(pid, signal.SIGKILL)
        return pid

    async def ended(self, seconds: float = PATIENT, *, sound: bool = True) -> int:
        """Wait for the end; returns the exit status. The audit of the log finds no fault, or (`sound=False`) some."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                self.process.send_signal(signal.SIGTERM)
                raise AssertionError(f"the run did not end within {seconds} s: {self.output()}")
            await asyncio.sleep(0.05)
        assert ("\nFAULT  " not in self.output()) == sound, f"the audit of the run's log: {self.output()}"
        return self.process.returncode

    def output(self) -> str:
        """Output of the process."""
        return self.output_file.read_text(errors="replace")

    def abort(self) -> None:
        """Whatever happens in a test, leave nothing behind."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def processes_left(self) -> list[str]:
        """Processes of this run that still live."""
        left = []
        for process in psutil.process_iter(["cmdline", "status"]):
            command = " ".join(process.info["cmdline"] or [])
            if str(self.folder) in command and process.info["status"] != psutil.STATUS_ZOMBIE:
                left.append(command)
        return left

    async def log(self) -> list[tuple[int, Message]]:
        """The durable log of the run that has ended, from its own store."""
        server = await EmbeddedServer.start(self.folder / "nats")
        try:
            bus = await NatsBus.connect(
                server.url, "gsm8k-grpo", name="reader", token=server.token, blobs=self.folder / "blobs"
            )
            found = [(envelope.sequence, envelope.open(BY_SUBJECT[envelope.subject])) async for envelope in bus.log()]
            await bus.close()
        finally:
            await server.stop()
        return found
