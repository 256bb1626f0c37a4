"""The other end of `sender.py`: starts the process of a tracker, writes to it, and reports what becomes of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import areal_actors
from areal_actors.core.command import COMMAND
from areal_actors.core.trackers import interpreter
from areal_actors.track.sender import TrackedRun

ROOT = str(Path(areal_actors.__file__).parent.parent)
BOOT = """
import sys
sys.path[:] = [path for path in sys.path if path]
sys.path.append(sys.argv[1])
from areal_actors.core.trackers import interpreter
from areal_actors.track.sender import main
sys.path.pop()
main()
"""
"""Starts a sender in any interpreter: only its package is loaded from our path, so that the libraries of that
interpreter are its own. The current directory is left out: libraries leave folders of their own names there."""


class TrackerProcess:
    """One tracker.

    What it cannot take yet waits in memory, so that it delays no other. Its failure is reported once, by its name.
    """

    def __init__(self, name: str, run: str, process: asyncio.subprocess.Process) -> None:
        self.name, self.run, self.process = name, run, process
        self.error = ""
        self._done = False
        self._answered_at = time.monotonic()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, name: str, python: str, run: TrackedRun) -> TrackerProcess:
        """Start the process in an interpreter (empty: this one); the output of its library goes to standard output."""
        process = await asyncio.create_subprocess_exec(
            *(interpreter(python), "-c", BOOT, ROOT),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=1,
            start_new_session=True,
        )
        started = cls(name, run.name, process)
        started.send([name, run._asdict()])
        return started

    def send(self, message: Any) -> None:
        """Hand over a point; one for a process that has ended is dropped."""
        assert self.process.stdin is not None
        if not self._reading.done() and not self.error:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")

    async def end(self, status: str, error: str, seconds: float, *, patient: bool) -> str:
        """Hand over the end of the run; returns what went wrong with the tracker, empty if nothing did.

        It is killed after `seconds`, or if `patient` after `seconds` without an answer.
        """
        self.send({"status": status, "error": error})
        ended = self._answered_at = time.monotonic()
        while not self._reading.done():
            left = seconds + (self._answered_at if patient else ended) - time.monotonic()
            if left <= 0:
                if not self._done:
                    self._fail(f"did not take the rest of the run within {seconds:g} s and was killed")
                with suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)
                await self.process.wait()
                break
            await asyncio.wait({self._reading}, timeout=left)
        return self.error

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self._answered_at = time.monotonic()
            self._receive(json.loads(line))
        status = await self.process.wait()
        if not self._done:
            self._fail(f"its process ended with status {status}")

    def _receive(self, answer: Mapping[str, Any]) -> None:
        if place := answer.get("place"):
            sys.stdout.write(f"{self.name}: {place}\n")
            sys.stdout.flush()
        if error := answer.get("error"):
            self._fail(error)
        self._done = self._done or "done" in answer

    def _fail(self, error: str) -> None:
        if not self.error:
            self.error = error
            remedy = f"the run is not affected; `{COMMAND} export {self.run} --to {self.name}` sends it again"
            sys.stderr.write(f"tracker {self.name}: {error}; {remedy}\n")
            sys.stderr.flush()
