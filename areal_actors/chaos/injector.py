"""Injects the faults of `[chaos]` in the launcher process; each is logged as an event before it is injected."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from random import Random

import structlog

from areal_actors.chaos import faults
from areal_actors.chaos.corruption import SPOILT, order
from areal_actors.chaos.schedule import FaultSchedule, PlannedFault, choose_target, shuffled_targets
from areal_actors.chaos.settings import EVERYTHING, LAUNCHER, SERVER, ChaosSettings
from areal_actors.chaos.tcp_proxy import Links
from areal_actors.messages import (
    ActorFailed,
    ActorStarted,
    ActorStopped,
    BatchFormed,
    ExamplesDrawn,
    FaultInjected,
    RunResumed,
    StepCompleted,
)
from areal_bus.errors import BusError
from areal_bus.message import Event, Message

POLL_SECONDS = 0.05
POSTPONE_SECONDS = 2.0
"""Delay before a fault with a missing target is retried."""
CHECKPOINT, LOG = "checkpoint", "log"

Fault = tuple[str, str, Callable[[], None]]
"""Target and description of a fault, and the call that injects it."""
logger = structlog.get_logger(__name__)


class Health:
    """A fold over a run's events.

    It is healthy if every actor serves, and a step was trained on a batch formed after the last fault.
    """

    def __init__(self) -> None:
        self.known: set[str] = set()
        """Actors that have served."""
        self.serving: set[str] = set()
        self.formed = 0
        """Number of batches, or draws of examples."""
        self.steps = 0
        self.recovered_at = 0
        """Step whose completion ends the recovery from the last fault."""
        self.injected: Counter[str] = Counter()
        """Faults by kind, over all launches of the run."""

    def receive(self, message: Message) -> None:
        """Fold an event."""
        match message:
            case ActorStarted():
                self.known.add(message.actor)
                self.serving.add(message.actor)
            case ActorFailed() | ActorStopped():
                self.serving.discard(message.actor)
            case RunResumed():
                self.serving.clear()
                self.recovered_at = max(self.recovered_at, self.steps + 1)
            case BatchFormed() | ExamplesDrawn():
                self.formed = max(self.formed, message.step + 1)
            case StepCompleted():
                self.steps = max(self.steps, message.step)
            case FaultInjected():
                self.injected[message.kind] += 1
                self.recovered_at = self.formed + 1

    def is_healthy(self) -> bool:
        """Returns True if the run has recovered from the last fault."""
        return bool(self.known) and self.known == self.serving and self.steps >= self.recovered_at


class FaultTargets:
    """Possible targets of faults in a run."""

    def __init__(
        self, folder: Path, processes: Callable[[], Mapping[str, int]], kinds: Mapping[str, frozenset[str]]
    ) -> None:
        """`processes` returns the ids of running processes by name.

        `kinds` has the actor kinds of every possible process.
        """
        self.folder = folder
        self.processes = processes
        self.kinds = kinds

    def matches(self, target: str, process: str) -> bool:
        """Returns True if a configured target is the name or kind of this process, or the kind of an actor in it."""
        return target in (process, process.rpartition("-")[0]) or target in self.kinds.get(process, frozenset())

    def server_pid(self) -> int:
        """Returns the process id of the run's own nats-server; 0 if it has none."""
        return faults.server_pid(self.folder / "nats")


class Chaos:
    """Fault injection for one launch of a run; does nothing unless `[chaos]` is enabled."""

    def __init__(
        self, settings: ChaosSettings, targets: FaultTargets, publish: Callable[[Event], Awaitable[None]]
    ) -> None:
        self.settings = settings
        self.targets = targets
        self.publish = publish
        self.health = Health()
        self.links = Links(targets.folder)
        self.lasts_until = 0.0
        """End of the last fault, by the event loop's clock."""

    def restore(self, *, steps: int, injected: Mapping[str, int]) -> None:
        """Restore steps, and faults by kind and target, of earlier launches of the run."""
        self.health.steps = self.health.formed = steps
        for fault, count in injected.items():
            self.health.injected[fault.partition(" of ")[0]] += count

    async def open(self, url: str) -> None:
        """Start the links that can be cut, before the processes that use them."""
        if self.settings.injects("partition"):
            targets = self.settings.partition.targets
            wanted = [
                name
                for name in self.targets.kinds
                if not targets or any(self.targets.matches(target, name) for target in targets)
            ]
            await self.links.open(url, wanted)

    async def run(self, all_started: Callable[[], bool], is_ending: Callable[[], bool]) -> None:
        """Inject one fault after the other, from when all processes have started until the run is asked to end."""
        schedule = FaultSchedule(self.settings, self.health.injected)
        if schedule.first() is None:
            return
        # A fold of events
        while not all_started() or not self._is_ready() or self.health.steps < self.settings.after_steps:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (planned := schedule.first()) is not None:
            await asyncio.sleep(max(began + planned.due - loop.time(), 0.0))
            while not self._is_ready():  # noqa: ASYNC110 - the same
                await asyncio.sleep(POLL_SECONDS)
            if is_ending():
                return
            try:
                injected = await self._inject(planned)
            except Exception:  # a failed injection must not end the run
                logger.exception("fault injection failed and has stopped")
                return
            if injected:
                schedule.schedule_next(planned)
            else:
                schedule.postpone(planned, loop.time() - began - planned.due + POSTPONE_SECONDS)

    def _is_ready(self) -> bool:
        if not self.settings.one_at_a_time:
            return bool(self.health.known)
        return self.health.is_healthy() and asyncio.get_running_loop().time() >= self.lasts_until

    async def _inject(self, planned: PlannedFault) -> bool:
        """Publish a fault and inject it; returns False if its target is missing, or it cannot be published."""
        if (fault := self._fault(planned)) is None:
            return False
        target, detail, inject = fault
        try:
            await self.publish(FaultInjected(kind=planned.kind, target=target, detail=detail))
        except BusError as error:
            logger.warning(
                "a fault was not injected: its event could not be published",
                kind=planned.kind,
                target=target,
                error=str(error),
            )
            return False
        # Noted before its event returns from the log, so that no other fault is injected meanwhile.
        self.health.recovered_at = self.health.formed + 1
        self.lasts_until = asyncio.get_running_loop().time() + self.settings.seconds_of(planned.kind)
        with contextlib.suppress(OSError):
            inject()
        return True

    def _fault(self, planned: PlannedFault) -> Fault | None:
        match planned.kind:
            case "kill":
                return self._kill(planned)
            case "pause":
                return self._pause(planned)
            case "partition":
                return self._cut(planned)
            case "flip":
                return self._flip(planned)
            case "slow_disk":
                return self._slow()
            case "bad_completion":
                return self._spoil(planned)

    def _kill(self, planned: PlannedFault) -> Fault | None:
        target, pid = self._process(self.settings.kill.targets, planned)
        if target == EVERYTHING:
            return target, "SIGKILL to every process of the run, the launcher last", self._end
        return (target, f"SIGKILL to process {pid}", lambda: faults.kill(pid)) if pid else None

    def _pause(self, planned: PlannedFault) -> Fault | None:
        settings = self.settings.pause
        target, pid = self._process(settings.targets, planned)
        detail = f"SIGSTOP to process {pid}, and SIGCONT after {settings.seconds:g} s"
        return (target, detail, lambda: faults.hold(pid, settings.seconds)) if pid else None

    def _process(self, targets: tuple[str, ...], planned: PlannedFault) -> tuple[str, int]:
        """Choose a running target; returns its name and process id, 0 if none runs."""
        special = {SERVER: self.targets.server_pid(), LAUNCHER: os.getpid(), EVERYTHING: os.getpid()}
        pids = {**self.targets.processes(), **{name: pid for name, pid in special.items() if pid and name in targets}}
        target = self._choose(targets, list(pids), planned)
        return target, pids.get(target, 0)

    def _choose(self, targets: tuple[str, ...], names: list[str], planned: PlannedFault) -> str:
        seed = self.settings.seed
        return choose_target(
            shuffled_targets(targets or sorted(names), planned, seed), names, planned.random(seed), self.targets.matches
        )

    def _cut(self, planned: PlannedFault) -> Fault | None:
        settings = self.settings.partition
        names = [name for name in self.targets.processes() if name in self.links.processes]
        if not (target := self._choose(settings.targets, names, planned)):
            return None
        pid = self.links.processes[target].pid
        return target, f"cut off from the bus for {settings.seconds:g} s", lambda: faults.hold(pid, settings.seconds)

    def _flip(self, planned: PlannedFault) -> Fault | None:
        random = planned.random(self.settings.seed)
        if shuffled_targets(self.settings.flip.targets or (CHECKPOINT,), planned, self.settings.seed)[0] == LOG:
            blocks = faults.log_blocks(self.targets.folder / "nats" / "store")
            if not blocks or not self.targets.server_pid():
                return None
            block = random.choice(blocks)
            detail = (
                f"one bit of {block.relative_to(self.targets.folder)}, after SIGKILL to nats-server, and then to every"
                " process"
            )
            return LOG, detail, lambda: self._end((block, random))
        files = faults.newest_checkpoint(self.targets.folder / "checkpoints")
        trainers = [pid for name, pid in self.targets.processes().items() if self.targets.matches("trainer", name)]
        if not files or not trainers:
            return None
        file = random.choice(files)
        detail = f"one bit of {file.relative_to(self.targets.folder)}, and SIGKILL to the trainer, which has to load it"

        def damage() -> None:
            faults.flip_bit(file, random)
            faults.kill(trainers[0])

        return CHECKPOINT, detail, damage

    def _slow(self) -> Fault | None:
        settings = self.settings.slow_disk
        if not (pid := self.targets.server_pid()):
            return None
        times = max(round(settings.seconds / (settings.hold_seconds + faults.GO_SECONDS)), 1)
        detail = f"each write takes {settings.hold_seconds:g} s for {settings.seconds:g} s"
        return SERVER, detail, lambda: faults.hold(pid, settings.hold_seconds, times)

    def _spoil(self, planned: PlannedFault) -> Fault | None:
        way = shuffled_targets(self.settings.bad_completion.targets or tuple(SPOILT), planned, self.settings.seed)[0]
        workers = sorted(actor for actor in self.health.serving if actor.startswith("inference_worker"))
        if not workers:
            return None
        worker = planned.random(self.settings.seed).choice(workers)
        return worker, f"its next completion is spoilt: {way}", lambda: order(self.targets.folder, worker, way)

    def _end(self, damage: tuple[Path, Random] | None = None) -> None:
        links = [link.pid for link in self.links.processes.values()]
        faults.end_everything(self.targets.server_pid(), [*self.targets.processes().values(), *links], damage)
