"""A small real run of a few seconds, for `stalls.py`.

Started by the command line, with faults sent to its processes, and its log read.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from areal_actors.display.sentences import plain_line
from areal_actors.messages import KINDS
from areal_actors.processes.fork_server import FORK_SERVER
from areal_actors.tasks.arithmetic import rows
from areal_bus.nats import NatsBus
from areal_bus.server import EmbeddedServer

ROOT = Path(__file__).parent.parent
RUN = "stalls"
RANK = "rank_process"
SMALL = (
    f"run={RUN}",
    "profile=embedded",
    "warm_start.steps=1",
    "warm_start.tail_steps=0",
    "evaluation.tasks=0",
    "trainer.batch_size=2",
    "algorithm.group_size=2",
    "generation.engine=scripted",
    "staleness_gate.max_concurrent=8",
    "checkpoint.every_steps=0",
    "task.retries=0",
    "watchdog.max_failures_in_a_row=8",
    "watchdog.max_rejections_in_a_row=16",
    "watchdog.max_discarded_batches=4",
    "watchdog.engine_mismatch=off",
)
SHORT = {
    "watchdog.stall_seconds": 4,
    "watchdog.max_stall_seconds": 14,
    "watchdog.heartbeat_seconds": 4,
    "watchdog.start_seconds": 5,
    "watchdog.save_seconds": 5,
    "watchdog.stop_seconds": 2,
    "watchdog.load_seconds": 8,
    "watchdog.bus_seconds": 12,
    "task.timeout_seconds": 3,
    "task.reward_timeout_seconds": 1,
    "gateway.completion_seconds": 2,
}
"""Deadlines in seconds on an idle machine."""
STEP = re.compile(r"^\S+ step (\d+): ", re.MULTILINE)


class StallRun:
    """One run in separate processes."""

    def __init__(
        self, folder: Path, settings: Sequence[str], *, patch: str = "", after: int = 0, scale: float = 1.0
    ) -> None:
        """Start the run; `scale` multiplies the deadlines, for a loaded machine."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder.resolve()
        self.output, self.mark, self.dataset = (
            self.folder / "output.txt",
            self.folder / "mark",
            self.folder / "dataset.jsonl",
        )
        self.scale = scale
        self.injected = 0.0
        """Time of the fault injected from outside, in seconds since the epoch."""
        (self.folder / "empty.jsonl").touch()
        self.dataset.write_text("".join(f"{json.dumps(row)}\n" for row in rows("train", 300, 0)))
        site = {
            "PYTHONPATH": os.pathsep.join([str(ROOT / "benchmarks" / "stall_site"), str(ROOT)]),
            "STALL_PATCH": patch,
        }
        environment = {**os.environ, **site, "STALL_AFTER": str(after), "STALL_MARK": str(self.mark)}
        deadlines = [f"{name}={seconds * scale:g}" for name, seconds in SHORT.items()]
        words = [word.replace("{folder}", str(self.folder)) for word in settings]
        command = (sys.executable, "-m", "areal_actors", "run", "recipes/gsm8k_grpo.toml", f"folder={self.folder}")
        self.began = time.time()
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, *SMALL, *deadlines, *words],
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    # ------------------------------------------------------------ from outside

    def text(self) -> str:
        """Output of the run so far."""
        return self.output.read_text(errors="replace")

    def until_step(self, step: int) -> None:
        """Wait for a trained step, or the end of the run."""
        while self.process.poll() is None and not any(int(found) >= step for found in STEP.findall(self.text())):
            time.sleep(0.05)

    def pids(self) -> dict[str, int]:
        """Process ids by name: the launcher, nats-server and the run's own processes."""
        found = {"launcher": self.process.pid}
        for child in psutil.Process(self.process.pid).children():
            words = child.cmdline()
            found["nats-server" if "nats-server" in words[0] else words[-1]] = child.pid
        return found

    def workers(self) -> list[str]:
        """Names of the run's own processes."""
        return [name for name in self.pids() if name not in ("launcher", "nats-server", FORK_SERVER)]

    def send(self, process: str, number: signal.Signals) -> None:
        """Send a signal to a process and record the time of the fault."""
        self.injected = time.time()
        os.kill(self.pids()[process], number)

    def send_to_rank(self, number: signal.Signals) -> None:
        """Send a signal to the process of the trainer's last rank."""
        ranks = [
            child
            for child in psutil.Process(self.pids()["trainer"]).children(recursive=True)
            if RANK in " ".join(child.cmdline())
        ]
        self.injected = time.time()
        os.kill(max(child.pid for child in ranks), number)

    def pause(self, processes: Iterable[str], seconds: float) -> None:
        """Stop these processes together, and continue them after these seconds times the scale."""
        pids = self.pids()
        stopped = [pids[process] for process in processes]
        self.injected = time.time()
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds * self.scale)
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def wait(self, seconds: float) -> int | None:
        """Exit status; None if the run did not end in time and was terminated."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        return None

    def processes_left(self) -> list[psutil.Process]:
        """Processes of this run that are still alive 5 s after its end."""
        until = time.monotonic() + 5.0
        while (left := self._left()) and time.monotonic() < until:
            time.sleep(0.1)
        return left

    def _left(self) -> list[psutil.Process]:
        found = psutil.process_iter(["cmdline", "status"])
        own = (one for one in found if str(self.folder) in " ".join(one.info["cmdline"] or []))
        return [process for process in own if process.info["status"] != psutil.STATUS_ZOMBIE]

    # ------------------------------------------------------------ afterwards

    def fault_at(self) -> float:
        """Time of the fault: injection from outside, first faulty call in the run, or the start."""
        marks = self.mark.read_text().split() if self.mark.exists() else []
        return self.injected or (float(marks[0]) if marks else self.began)

    def reports(self) -> list[tuple[float, str]]:
        """All reports: events of the log with their times, then output lines with the time of the end."""
        ended = self.output.stat().st_mtime
        store = self.folder / RUN / "nats"
        events = (
            asyncio.run(_events(store, self.folder / RUN / "blobs")) if store.is_dir() and any(store.iterdir()) else []
        )
        return [*events, *((ended, line) for line in self.text().splitlines())]


async def _events(store: Path, blobs: Path) -> list[tuple[float, str]]:
    by_subject = {kind.subject: kind for kind in KINDS}
    server = await EmbeddedServer.start(store)
    try:
        bus = await NatsBus.connect(server.url, RUN, name="reader", token=server.token, blobs=blobs)
        found = [
            (envelope.time, plain_line(envelope.open(by_subject[envelope.subject]))) async for envelope in bus.log()
        ]
        await bus.close()
    finally:
        await server.stop()
    return [(time, line) for time, line in found if line]
