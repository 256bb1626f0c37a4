"""Parts of `areal-actors run --on` for `part_faults.py`.

Launched jobs, the command, its run, and workers that autoscale adds and removes.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import psutil
from part_scene import RECOVERY_SECONDS, SETTINGS, SUPERVISOR, Fault, Kind, Part, Scene, command_line, family, until
from support.live_run import RECIPE, SMALL, LiveRun

from areal_actors.hosts.launchers.local_workers import HOLDER
from areal_actors.messages import ScaleDecided, WorkerJoined, WorkerLeft

ROLES = ("rollout_worker", "inference_worker")
LAUNCHED = ("hosts.rollout_worker.count=1", "hosts.inference_worker.count=1")
SCALED = (
    "autoscale.enabled=true",
    "autoscale.window_seconds=3",
    "autoscale.cooldown_seconds=1",
    "autoscale.reward_worker.max=2",
)
HELPFUL = "import time\n\n\ndef slow(task, output):\n    time.sleep(0.15)\n    return float(len(output) % 2)\n"
"""A reward for which another worker helps."""
SERIAL = (
    "import fcntl, time\n\n\ndef slow(task, output):\n    with open(__file__) as lock:\n        fcntl.flock(lock,"
    " fcntl.LOCK_EX)\n        time.sleep(0.15)\n    return float(len(output) % 2)\n"
)
"""A reward for which another worker does not help, so that the decision is undone."""
REWARD = "reward_worker"
GROWING_SECONDS = 60.0
"""Time in which a decision on another worker is followed; after a worker was lost, the run may have found that it does
not help."""


class LaunchedRun(LiveRun):
    """`areal-actors run --on local` in a process of its own."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.folder = folder / "gsm8k-grpo"
        self.output_file = folder / "output.txt"
        folder.mkdir(parents=True, exist_ok=True)
        self.events = []
        self._command("launch", str(RECIPE), "--on", "local", f"folder={folder}", *SMALL, *settings)


class Launched(Scene):
    """A launched run with joined workers of this machine."""

    def __init__(self, run: LaunchedRun, random: Random) -> None:
        super().__init__(run, random)
        self.launcher = run.process
        self.joined: list[tuple[str, asyncio.subprocess.Process]] = []
        """Commands that an operator has started, with their roles."""
        for role in ROLES:
            self.parts[f"launched job ({role})"] = self._job(role, whole=True)
            self.parts[f"launched worker ({role})"] = self._job(role, whole=False)
        self.parts["areal-actors run --on"] = Part(self._launcher, lambda: ("areal-actors run --on",))
        self.parts["areal-actors run of a launch"] = Part(self.supervisor, lambda: (SUPERVISOR,))
        self.parts["added worker"] = Part(self.added, lambda: (f"{REWARD}-1",))

    def alive(self) -> bool:
        """Returns True until the run itself has ended, with its launcher or after it."""
        return bool(self.supervisor()) or self.run.process.poll() is None

    def supervisor(self) -> list[psutil.Process]:
        """Returns the process of `areal-actors run`, or of `areal-actors resume`."""
        if self.run.process is not self.launcher:
            return family(self.run.process.pid)[:1]
        return self.started_as("run")

    def started_as(self, name: str) -> list[psutil.Process]:
        """Returns the living commands whose name at this launcher begins so, the newest first."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                holder = process.environ().get(HOLDER, "")
                if holder.startswith(f"{self.launcher.pid} {name}") and process.cmdline()[1:3] == [
                    "-m",
                    "areal_actors",
                ]:
                    found += family(process.pid)[:1]
        return sorted(found, key=lambda one: -one.create_time())

    def _launcher(self) -> list[psutil.Process]:
        return family(self.launcher.pid)[:1]

    def _job(self, role: str, *, whole: bool) -> Part:
        def find() -> list[psutil.Process]:
            commands = [*(psutil.Process(one.pid) for one in self.joiners(role)), *self.started_as(f"{role}-0")]
            processes = [one for command in commands for one in family(command.pid)]
            return (
                processes if whole else [one for one in processes if "areal_actors.processes" in command_line(one)][:1]
            )

        def ready() -> bool:
            workers = [event.worker for event in self.run.received(WorkerJoined) if event.role == role]
            return bool(workers) and self.serves(workers[-1])

        async def restore() -> None:
            await self.join(role)

        return Part(find, lambda: (f"{role}-",), restore if whole else None, ready)

    async def join(self, role: str) -> None:
        """Start a host of a role that has lost its only one, as an operator does."""
        words = ("-m", "areal_actors", "join", "--credential", str(self.run.folder / "join.json"), "--role", role)
        output = (self.run.folder.parent / f"operator-{len(self.joined)}.txt").open("wb")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        self.joined.append((role, process))
        output.close()

    def joiners(self, role: str) -> list[asyncio.subprocess.Process]:
        """Returns what an operator has started for a role, and lives."""
        return [process for its, process in self.joined if its == role and process.returncode is None]

    # ------------------------------------------------------------ workers that decisions add and remove

    def added(self) -> list[psutil.Process]:
        """Returns the processes of the worker that the newest decision has added."""
        return [one for command in self.started_as(f"{REWARD}-added")[:1] for one in family(command.pid)]

    def decided(self, *, more: bool) -> int:
        """Returns the number of decisions on more, or fewer, workers so far."""
        return len([event for event in self.run.received(ScaleDecided) if (event.workers > event.before) == more])

    async def inject_while_growing(self, kind: Kind, *, serving: bool) -> Fault:
        """Hit an added worker while it starts, or once it serves.

        Where the run wants no more of them, a launched one.
        """
        added = await until(self._serves_added if serving else self.added, GROWING_SECONDS) and bool(self.added())
        await asyncio.sleep(self.random.uniform(0.1, 2.0))
        name = "added worker" if added else "launched worker (rollout_worker)"
        fault = await self.hit(name, kind)
        await self._recover(self.parts[name], fault)
        return fault

    async def inject_while_shrinking(self, kind: Kind) -> Fault:
        """Hit the added worker at the moment when a decision has it leave."""
        before = self.decided(more=False)
        await until(lambda: self.decided(more=False) > before, 2 * GROWING_SECONDS)
        fault = await self.hit("added worker", kind)
        await self._recover(self.parts["added worker"], fault)
        return fault

    def _serves_added(self) -> bool:
        left = {event.worker for event in self.run.received(WorkerLeft)}
        here = [
            event.worker
            for event in self.run.received(WorkerJoined)
            if event.role == REWARD and event.worker not in left
        ]
        return any(self.serves(worker) for worker in here)

    # ------------------------------------------------------------ the end

    async def resume(self) -> None:
        """Resume the run after it was killed itself, as an operator does."""
        await asyncio.to_thread(self.run.process.wait)
        (self.run.folder / "join.json").unlink(missing_ok=True)
        self.run.resume()
        await until(
            lambda: (self.run.folder / "join.json").exists() or self.run.process.poll() is not None, RECOVERY_SECONDS
        )
        for role in ROLES:
            await self.join(role)

    async def close(self) -> None:
        """End the run by SIGTERM, and wait for all that joined it."""
        for process in self.supervisor():
            process.send_signal(signal.SIGTERM)
        await until(lambda: not self.alive(), RECOVERY_SECONDS)
        await asyncio.gather(*(process.wait() for _, process in self.joined))


@contextmanager
def launched(folder: Path, random: Random, *, helps: bool) -> Iterator[Launched]:
    """Start the launch; what is left is killed."""
    folder.mkdir(parents=True, exist_ok=True)
    reward = folder / "slow_reward.py"
    reward.write_text(HELPFUL if helps else SERIAL)
    run = LaunchedRun(folder / "runs", *SETTINGS, *LAUNCHED, *SCALED, f"task.reward={reward}:slow")
    scene = Launched(run, random)
    try:
        yield scene
    finally:
        for process in [
            *scene.supervisor(),
            *(one for _, joiner in scene.joined for one in family(joiner.pid)),
            *family(scene.launcher.pid),
        ]:
            with suppress(psutil.Error):
                process.kill()
        run.abort()
