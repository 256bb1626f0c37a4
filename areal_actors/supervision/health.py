"""Watches the processes of a run.

It kills processes that are stuck, reports a run without progress, and ends a run that cannot go on. The decisions are
pure code in `liveness` and `watchdog`; this module has the real clock, the bus and the supervisor.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec
import psutil
import structlog

from areal_actors.core.gateways import gateway_name
from areal_actors.messages import Heartbeat, RunStalled, WatchProbe
from areal_actors.processes.process import actors_of_process
from areal_actors.recipe.recipe import Recipe
from areal_actors.recipe.run_actors import SEVERAL
from areal_actors.recipe.supervision import gateways_of_others, joined_kind
from areal_actors.supervision.liveness import LONG_GAP_SECONDS, Leases, Liveness, WatchClock, activity_of
from areal_actors.supervision.supervisor import Supervisor
from areal_actors.supervision.watchdog import Watchdog
from areal_bus.base import Bus, Stamp
from areal_bus.errors import BusError
from areal_bus.message import Event, Message
from areal_bus.shared_times import seconds_to_next

LOOK_SECONDS = 1.0
SERVER = "nats-server"

logger = structlog.get_logger(__name__)


def _nothing(worker: str, reason: str) -> None:
    """The run has no remote workers."""


class HealthMonitor:
    """Receives the messages of the run's processes, and checks them once a second."""

    def __init__(
        self,
        recipe: Recipe,
        bus: Bus,
        supervisor: Supervisor,
        publish: Callable[[Event], Awaitable[None]],
        end: Callable[[str], None],
    ) -> None:
        """`end` is called with the reason when the run cannot go on."""
        self.settings = recipe.watchdog
        self.bus, self.supervisor, self.publish, self.end = bus, supervisor, publish, end
        self.trains = not recipe.is_served()
        self.clock = WatchClock(time.monotonic())
        placements = msgspec.structs.asdict(recipe.actors)
        elsewhere = sorted(SEVERAL - recipe.absent()) if recipe.bus.host and not recipe.is_served() else []
        self.watchdog = Watchdog(
            recipe.watchdog,
            0.0,
            batch_size=recipe.trainer.batch_size,
            waits_for_clients=recipe.is_online(),
            joined=[role for role in elsewhere if not placements[role].count],
            gateways=[gateway_name(number) for number in gateways_of_others(recipe)],
        )
        self.liveness = Liveness(recipe.watchdog, lambda process: actors_of_process(recipe, process), activity_of)
        self.leases = Leases(recipe.watchdog)
        self.let_go: Callable[[str, str], None] = _nothing
        """Called with a remote worker whose lease has expired, and the reason."""
        self.server_silent = ""
        """Reason why the bus is unusable; empty while it answers."""
        self._reported_silence = 0.0
        self._reported_together = False
        self._publishing: set[asyncio.Task[None]] = set()

    def receive(self, message: Message, sent: float) -> None:
        """Fold a message; `sent` is in seconds since the epoch by its sender's clock."""
        now = self.clock.watching
        if isinstance(message, WatchProbe):
            self.clock.note_answer()
        self.watchdog.receive(message, now, sent)
        if isinstance(message, Heartbeat):
            if joined_kind(message.process):
                self.leases.beat(message.process, now)
            else:
                self.liveness.beat(message.pid, message.actor, now)

    async def watch(self) -> None:
        """Check the run periodically until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._probe())
            while True:
                await asyncio.sleep(seconds_to_next(LOOK_SECONDS))
                self.look(time.monotonic())

    async def _probe(self) -> None:
        """Publish probes that return to this process on the same path as heartbeats."""
        number = 0
        while True:
            number += 1
            with suppress(BusError):
                await self.bus.publish(
                    WatchProbe(number=number), Stamp(id=uuid.uuid4().hex, sender="supervisor", time=time.time())
                )
            await asyncio.sleep(seconds_to_next(LOOK_SECONDS))

    def look(self, monotonic: float) -> None:
        """Run all checks at this monotonic time."""
        silent = self.clock.silent_seconds()
        gap_ended = self.clock.tick(monotonic)
        now = self.clock.watching
        if self.clock.paused > LONG_GAP_SECONDS:
            self._report(f"the supervisor's own process was paused for {self.clock.paused:.0f} s", self.clock.paused)
        if gap_ended:
            self.liveness.excuse(now)
            self.leases.excuse(now)
            if silent > self.settings.heartbeat_seconds:
                self._report(
                    f"{self._server()} did not answer the supervisor for {silent:.0f} s and answers again", silent
                )
        self._check_server()
        for overdue in self.liveness.overdue(self.supervisor.alive(), now):
            self.supervisor.kill(overdue.process, overdue.pid, overdue.reason)
        for worker, reason in self.leases.overdue(now):
            self.let_go(worker, reason)
        if self.liveness.silence and not self._reported_together:
            self._report(self.liveness.silence, self.settings.heartbeat_seconds)
        self._reported_together = bool(self.liveness.silence)
        if self.trains:
            self._check_progress(now)

    def _check_server(self) -> None:
        """Report a silent bus, and end the run if it stays silent."""
        silent = self.clock.silent_seconds()
        if silent <= min(self.settings.heartbeat_seconds, self.settings.bus_seconds):
            self._reported_silence = 0.0
            return
        sentence = f"{self._server()} has not answered the supervisor for {silent:.0f} s"
        if not self._reported_silence:
            self._reported_silence = silent
            logger.warning("%s; heartbeat deadlines are suspended meanwhile", sentence)
        if silent > self.settings.bus_seconds:
            self.server_silent = f"{sentence} (watchdog.bus_seconds = {self.settings.bus_seconds:g})"
            self.end(self.server_silent)

    def _check_progress(self, now: float) -> None:
        self.watchdog.progressed_at = max(self.watchdog.progressed_at, self.liveness.first_start_progressed)
        if stall := self.watchdog.find_stall(now):
            self._report(self._with_processes(stall[0], now), stall[1])
        if problem := self.watchdog.problem(now):
            self.end(self._with_processes(problem, now))

    def _with_processes(self, sentence: str, now: float) -> str:
        """Returns a sentence with the actors that have not started, stopped processes, and the processes' silence."""
        alive = self.supervisor.alive()
        missing = [self.liveness.missing(name, pid) for name, pid in alive.items()]
        starting = [f"{', '.join(actors)} not started yet" for actors in missing if actors]
        parts = (
            sentence,
            *starting,
            *self.leases.starting(now),
            *self.liveness.stopped(alive, now),
            self.liveness.silence,
        )
        return "; ".join(filter(None, parts))

    def _report(self, sentence: str, seconds: float) -> None:
        """Publish a sentence without waiting for the bus; if that fails, log it."""
        if self.clock.silent_seconds() > LONG_GAP_SECONDS:
            logger.warning(sentence)
            return
        task = asyncio.create_task(self._publish(RunStalled(sentence=sentence, seconds=seconds)))
        self._publishing.add(task)
        task.add_done_callback(self._publishing.discard)

    async def _publish(self, event: RunStalled) -> None:
        try:
            await self.publish(event)
        except BusError as error:
            logger.warning(event.sentence, unpublished=str(error))

    def _server(self) -> str:
        """Name of the server, with its process id and state if it is a child of this process."""
        with suppress(psutil.Error):
            for child in psutil.Process().children():
                if child.name() == SERVER:
                    stopped = child.status() == psutil.STATUS_STOPPED
                    return f"{SERVER} (process {child.pid}{', stopped by SIGSTOP' if stopped else ''})"
        return SERVER
