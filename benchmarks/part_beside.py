"""Parts beside a run for `part_faults.py`.

The web page, and the trackers' processes; and a Tinker server with a client that learns.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import psutil
from part_scene import RUN, SETTINGS, Fault, Kind, Part, Scene, command_line, family, until
from support.live_run import ROOT, LiveRun

ANSWER_SECONDS = 1.0
"""Longest time for an answer of the page."""
TRACKER = "tensorboard"
PYTHON = ROOT / ".environments" / "trackers" / "bin" / "python"
"""Interpreter with the library of the tracker."""
SETTLE_SECONDS = 60.0


class Beside(Scene):
    """A run with a page and a tracker."""

    def __init__(self, run: LiveRun, random: Random) -> None:
        super().__init__(run, random)
        self.answers: list[float] = []
        """Times at which the page has answered."""
        self.head: dict[str, Any] = {}
        self.url = ""
        self.page: subprocess.Popen[bytes] | None = None
        self.again: subprocess.Popen[bytes] | None = None
        """`areal-actors export` in place of the run's own tracker."""
        self.parts["page"] = Part(lambda: family(self.page.pid)[:1] if self.page else [], restore=self._serve_page)
        self.parts["tracker: its run's process"] = Part(self._tracking, restore=self._track_again)
        self.parts["tracker: the library's process"] = Part(
            lambda: self._tracking(library=True), restore=self._track_again
        )

    def command(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a command of `areal` on the run's folder."""
        folder = ["--folder", str(self.run.folder.parent)]
        with (self.run.folder.parent / f"{words[0]}.txt").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "areal_actors", words[0], RUN, *words[1:], *folder],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

    async def _serve_page(self) -> None:
        before = self._printed().count("http://")
        self.page = self.command("view")
        assert await until(lambda: self._printed().count("http://") > before, SETTLE_SECONDS), self._printed()
        self.url = re.findall(r"http://\S+", self._printed())[-1].rstrip("/")

    def _printed(self) -> str:
        file = self.run.folder.parent / "view.txt"
        return file.read_text(errors="replace") if file.exists() else ""

    async def watch(self) -> None:
        """Ask the page until cancelled."""
        await self._serve_page()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS)) as http:
            while True:
                with suppress(aiohttp.ClientError, TimeoutError, ValueError):
                    async with http.get(f"{self.url}/api/run") as answer:
                        self.head = (await answer.json())["head"]
                        self.answers.append(time.time())
                await asyncio.sleep(0.2)

    def _tracking(self, *, library: bool = False) -> list[psutil.Process]:
        """Returns the process that follows the run for its tracker, or that of the tracker's library."""
        own = [one for one in family(self.run.process.pid) if "areal_actors.track.process" in command_line(one)]
        above = (
            family(self.again.pid) if self.again is not None else [two for one in own[:1] for two in family(one.pid)]
        )
        return above[1:2] if library else above[:1]

    async def _track_again(self) -> None:
        self.again = self.command("track", "--to", TRACKER, "--python", str(PYTHON))

    async def inject(self, name: str, kind: Kind) -> Fault:
        """Hit a part, and note when the page has answered."""
        fault = await super().inject(name, kind)
        if name == "page":
            await asyncio.sleep(ANSWER_SECONDS)
            fault.own = tuple(at for at in self.answers if fault.at - 5 <= at)
            fault.until = time.time()
        return fault

    # ------------------------------------------------------------ after the end

    async def settle_page(self) -> int:
        """Wait until the page has the whole log; returns the events that it lacks."""
        await until(lambda: self.head.get("finished"), SETTLE_SECONDS)
        lacking = int(self.head.get("total", 0)) - int(self.head.get("last", 0)) + (not self.head.get("finished"))
        if self.page is not None:
            self.page.terminate()
            await asyncio.to_thread(self.page.wait)
        return lacking

    async def tracked(self) -> tuple[int, int]:
        """Returns the numbers of points that the tracker lacks, and has twice, after the run's command."""
        if self.again is not None:
            await asyncio.to_thread(self.again.wait)
        await asyncio.to_thread(self.command("track", "--to", TRACKER, "--python", str(PYTHON)).wait)
        reader = [
            str(PYTHON),
            str(ROOT / "tests" / "support" / "tracked_points.py"),
            TRACKER,
            str(self.run.folder.parent),
            RUN,
        ]
        held = json.loads(await asyncio.to_thread(subprocess.check_output, reader))["points"]
        points = Counter((metric, step) for metric, step, _ in held)
        return len(_written(self.run.folder) - points.keys()), sum(count - 1 for count in points.values())


def _written(folder: Path) -> set[tuple[str, int]]:
    """Returns the points of steps in `metrics.jsonl`."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["kind"] == "step.completed"]
    return {
        (name, row["step"])
        for row in steps
        for name, value in row["metrics"].items()
        if value is not None and not math.isnan(value)
    }


@asynccontextmanager
async def beside(folder: Path, random: Random) -> AsyncIterator[Beside]:
    """Start the run and its page; both are ended."""
    tracking = (f"track.to=['{TRACKER}']", f"track.python={PYTHON}")
    run = LiveRun(folder / "runs", *SETTINGS, *(tracking if PYTHON.exists() else ()))
    scene = Beside(run, random)
    try:
        yield scene
    finally:
        run.abort()
        for process in (scene.page, scene.again):
            if process is not None and process.poll() is None:
                os.kill(process.pid, 9)
                process.wait()
