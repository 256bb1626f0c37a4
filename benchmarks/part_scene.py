"""A live run for `part_faults.py`.

Kills and pauses parts of it, one at a time, and waits after each until the run goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

import msgspec
import psutil
from support.live_run import LiveRun

from areal_actors.messages import ActorStarted, StepCompleted

Kind = Literal["kill", "pause"]
RUN = "gsm8k-grpo"
PAUSE_SECONDS = (2.0, 20.0)
"""Bounds of a pause; a heartbeat may be missing for `HEARTBEAT_SECONDS`."""
HEARTBEAT_SECONDS, STALL_SECONDS = 12.0, 6.0
BEFORE_SECONDS = (0.3, 4.0)
"""Bounds of the time between the recovery from a fault and the next one."""
OPERATOR_SECONDS = 3.0
"""Time after which an operator starts again what nothing restarts."""
RECOVERY_SECONDS = 240.0
"""A run that does not go on within this time after a fault is stuck."""
STEPS_AFTER = 3
"""Steps after a fault by which a run goes on."""
POLL_SECONDS = 0.05
SUPERVISOR = "supervisor"
"""Name of what has no heartbeat of its own: it reports its pause itself."""
SETTINGS = (
    "steps=100000",
    "evaluation.tasks=0",
    "checkpoint.every_steps=25",
    f"watchdog.heartbeat_seconds={HEARTBEAT_SECONDS:g}",
    f"watchdog.stall_seconds={STALL_SECONDS:g}",
)


class Fault(msgspec.Struct):
    """A fault and what was seen of it from outside."""

    part: str
    kind: Kind
    seconds: float = 0.0
    """Length of the pause."""
    names: tuple[str, ...] = ()
    """Beginnings of the names of the actors that it hits: a report of a stall has to name one of them."""
    target: str = ""
    """The processes."""
    at: float = 0.0
    """Time of the signal, in seconds since the epoch."""
    until: float = 0.0
    """Time at which the run had gone on, or was given up."""
    went_on: bool = False
    lost: int = 0
    """Number of things that the part itself lost, beside episodes."""
    twice: int = 0
    own: tuple[float, ...] = ()
    """Times at which the part itself answered, if it is no part of training."""


@dataclass
class Part:
    """One or more processes that a fault can hit."""

    find: Callable[[], Sequence[psutil.Process]]
    """Returns its processes; none while it does not live."""
    names: Callable[[], tuple[str, ...]] = tuple
    """Returns the beginnings of the names of its actors."""
    restore: Callable[[], Awaitable[None]] | None = None
    """Start it again after a kill, as an operator does."""
    ready: Callable[[], bool] = lambda: True
    """Returns True if it serves (again)."""


def family(pid: int) -> list[psutil.Process]:
    """Returns a living process and all below it."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)] if process.status() != psutil.STATUS_ZOMBIE else []
    except psutil.Error:
        return []


def command_line(process: psutil.Process) -> str:
    """Returns the command of a process; empty if it is gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def send(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to all that still live."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


async def until(condition: Callable[[], object], seconds: float) -> bool:
    """Wait for a condition; returns False if it did not become true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True


class Scene:
    """A run, and the faults that hit it."""

    def __init__(self, run: LiveRun, random: Random) -> None:
        self.run, self.random = run, random
        self.parts: dict[str, Part] = {}
        self.faults: list[Fault] = []

    @property
    def steps(self) -> int:
        """Number of steps so far, repeated ones included."""
        return len(self.run.received(StepCompleted))

    def alive(self) -> bool:
        """Returns True until the run has ended."""
        return self.run.process.poll() is None

    def serves(self, name: str) -> bool:
        """Returns True if an actor or a process of this name has started."""
        return any(name in (event.actor, event.process) for event in self.run.received(ActorStarted))

    async def reach(self, steps: int, seconds: float = RECOVERY_SECONDS) -> bool:
        """Wait for a number of steps; returns False if the run did not reach it in time."""
        return await until(lambda: self.steps >= steps or not self.alive(), seconds) and self.steps >= steps

    async def inject(self, name: str, kind: Kind) -> Fault:
        """Hit a part at a random moment, and wait until the run has gone on."""
        part = self.parts[name]
        await until(lambda: part.find() and part.ready(), RECOVERY_SECONDS)
        await asyncio.sleep(self.random.uniform(*BEFORE_SECONDS))
        fault = await self.hit(name, kind)
        await self._recover(part, fault)
        return fault

    async def hit(self, name: str, kind: Kind) -> Fault:
        """Hit a part now; returns when its pause is over, or an operator has started it again."""
        part = self.parts[name]
        processes = part.find()
        target = " ".join(f"{process.pid}" for process in processes)
        fault = Fault(part=name, kind=kind, names=part.names(), target=target, at=time.time())
        self.faults.append(fault)
        if kind == "kill":
            send(processes, signal.SIGKILL)
            if part.restore is not None:
                await asyncio.sleep(OPERATOR_SECONDS)
                await part.restore()
        else:
            fault.seconds = self.random.uniform(*PAUSE_SECONDS)
            send(processes, signal.SIGSTOP)
            await asyncio.sleep(fault.seconds)
            send(processes, signal.SIGCONT)
        return fault

    async def _recover(self, part: Part, fault: Fault) -> None:
        after = self.steps
        fault.went_on = await self.reach(after + STEPS_AFTER) and await until(part.ready, RECOVERY_SECONDS)
        fault.until = time.time()
        print(
            f"    {time.strftime('%H:%M:%S')} {fault.kind} {fault.part} {fault.seconds:.1f} s: "
            f"{'goes on' if fault.went_on else 'STUCK'} after {fault.until - fault.at:.1f} s, step {self.steps}",
            flush=True,
        )


def temporary_leftovers(folder: Path) -> list[str]:
    """Returns names in the folder for temporary files."""
    return sorted(path.name for path in folder.iterdir())


def marked_processes(folder: Path) -> list[str]:
    """Returns the commands of living processes that have a folder in their command or their environment."""
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            words = [*process.cmdline(), *process.environ().values()]
            if (
                process.pid != os.getpid()
                and process.status() != psutil.STATUS_ZOMBIE
                and any(str(folder) in word for word in words)
            ):
                left.append(f"{process.pid} {' '.join(process.cmdline())[:120]}")
    return left
