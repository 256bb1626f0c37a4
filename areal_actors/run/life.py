"""One life of a run: its processes, the watch over them, what is shown, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
import uuid
from typing import Any

import msgspec
from rich.console import Console

from areal_actors.chaos.injector import Chaos, Place
from areal_actors.display.audit_fold import AuditFold
from areal_actors.display.monitor import follow
from areal_actors.display.recall import AUDIT, RUN_STATE
from areal_actors.display.run_state import RunState
from areal_actors.display.summary import write_summary
from areal_actors.display.view import RunView
from areal_actors.errors import SetupError
from areal_actors.messages import (
    KINDS,
    ActorFailed,
    ActorStarted,
    ActorStopped,
    CheckpointSaved,
    EvaluationCompleted,
    GroupsUsedUp,
    Heartbeat,
    LossEvaluated,
    RunFinished,
    RunResumed,
    RunStarted,
    RunStopping,
    SnapshotStored,
    StepCompleted,
    TrainerPhase,
    TrainingHalted,
    WatchProbe,
    WeightsPublished,
)
from areal_actors.recipe.recipe import Recipe
from areal_actors.run.disk_watch import DiskWatch
from areal_actors.run.health import LOOK_SECONDS, HealthMonitor
from areal_actors.run.log_recovery import note_log_end
from areal_actors.run.log_retention import LogReaders, LogRetention, Reader, folds_of
from areal_actors.run.server import RunServer
from areal_actors.run.supervisor import Supervisor
from areal_actors.run_folder import RunFolder
from areal_actors.settings import FOLDING
from areal_actors.snapshots import SnapshotStore
from areal_actors.values import Value
from bus.base import Stamp
from bus.errors import BusError
from bus.message import Event, Message
from bus.nats import NatsBus

SHOW_SECONDS = 2.0
"""For the display to catch up with the end of the run."""
LAST_CHOICE_SECONDS = 10.0
"""For the checkpointer to choose the best after the last evaluation, which it hears when we do."""
POLL_SECONDS = 0.05
USUAL_FOLDER = "runs"
FINISHED, FAILED, INTERRUPTED = 0, 1, 130


class Usage(Value):
    """What a process has used, as its last heartbeat said."""

    cpu_seconds: float
    peak_memory_bytes: int


class RunLife:
    """From the first process to the last: of a run that begins, or of one that goes on."""

    def __init__(self, recipe: Recipe, folder: RunFolder, bus: NatsBus, server: RunServer) -> None:
        self.recipe, self.folder, self.bus, self.server = recipe, folder, bus, server
        self.supervisor = self.make_supervisor()
        self.health = self._health()
        self.disk = DiskWatch(recipe.disk, folder)
        self.chaos = Chaos(recipe.chaos, Place(folder.path, self.supervisor.alive, self.supervisor.kinds()), self.say)
        self.view = RunView()
        self.state = RunState()
        """What the log says of the run; its snapshots are what later readers begin with."""
        store = SnapshotStore(folder.snapshots)
        readers: dict[str, Reader] = {RUN_STATE: self.state, AUDIT: AuditFold()}
        self.readers = LogReaders(bus, store, readers, self.say)
        self.retention = LogRetention(
            recipe.log,
            bus,
            store,
            folds=folds_of(self.supervisor.instances().items(), FOLDING, readers),
            keep_last=recipe.checkpoint.keep_last,
            blobs=folder.blobs,
            say=self.say,
        )
        self.known = 0
        """The newest event that an earlier life has left."""
        self.read_to = 0
        """The newest event that was read."""
        self.serving: dict[str, str] = {}
        """The process of each actor that serves its mailbox."""
        self.all_started = False
        self.published = asyncio.Event()
        """The trainer has published weights in this life."""
        self.evaluations_due = (1 if recipe.learns_from_examples() else 2) if recipe.evaluation.tasks else 0
        self.steps = 0
        self.has_weights = False
        self.usage: dict[str, Usage] = {}
        self.saved_at = -1
        self.judged = 0
        """The place of the newest evaluation in the log."""
        self.saved_again = asyncio.Event()
        self.interrupted = asyncio.Event()
        self.used_up: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Resolved with the reason why going on would teach nothing; what there is is saved first."""
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Resolved with the error that ended the run, empty when it has done what the recipe asked."""

    def make_supervisor(self) -> Supervisor:
        """The supervisor of this life."""
        return Supervisor(self.recipe, self.folder, self.say, self.server.addresses)

    async def say(self, event: Event) -> None:
        """Publish an event of the supervisor's own."""
        await self.bus.publish(event, Stamp(id=uuid.uuid4().hex, sender="supervisor", time=time.time()))

    async def run(self, opening: RunStarted | RunResumed) -> int:
        """Start, watch, end.

        Raises:
            SetupError: the run that is to go on has done all that it was asked.
        """
        if isinstance(opening, RunResumed):
            await self._recall()
        await self.say(opening)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        loop.add_signal_handler(signal.SIGTERM, self._interrupt)
        console = Console()
        showing = asyncio.create_task(follow(self.bus, self.view, console, live=console.is_terminal, after=self.known))
        ears = [asyncio.create_task(ear) for ear in (self._hear_events(), self._hear_telemetry(), self.health.watch(), self._watch_disk())]
        ears.append(asyncio.create_task(self.server.report_restarts(self.say)))
        if described := self.recipe.chaos.described():
            sys.stderr.write(f"chaos is on: THIS RUN IS DAMAGED ON PURPOSE: {described}\n")
        await self.chaos.open(self.server.addresses.owner.url)
        ears.append(asyncio.create_task(self.chaos.run(lambda: self.all_started, self._is_ending)))
        for ear in ears:
            ear.add_done_callback(self._ear_ended)
        starting = asyncio.create_task(self._start(trainer_first=isinstance(opening, RunResumed)))
        starting.add_done_callback(self._started)
        try:
            error = await self._outcome()
            if self._bus_answers():
                error = await self._finish(error)
                with contextlib.suppress(TimeoutError, BusError):
                    await asyncio.wait_for(asyncio.shield(showing), SHOW_SECONDS)
        finally:
            starting.cancel()
            await (self.supervisor.kill_all() if self.server.failed.done() else self.supervisor.stop())
            await self.retention.close()
            await self.readers.close()
            for task in (*ears, showing):
                task.cancel()
            await asyncio.gather(*ears, showing, return_exceptions=True)
            await self.chaos.close()
            sys.stderr.write(self.folder.keep_usage(msgspec.json.encode(self.usage)))
        if self.steps and self._bus_answers():
            console.print(await write_summary(self.bus, self.folder.path))
        if error:
            sys.stderr.write(f"run '{self.recipe.run}' ended early: {error}\n")
            if self.known or self.steps:
                sys.stderr.write(f"to go on: areal resume {self.folder.path.name}{self._where()}\n")
        return INTERRUPTED if self.interrupted.is_set() else FAILED if error else FINISHED

    async def _finish(self, error: str) -> str:
        """Publish how the run ended; returns the error that it ended with, which is the server's where that is gone now."""
        finishing = asyncio.create_task(self._publish_end(error))
        await asyncio.wait({finishing, self.server.failed}, return_when=asyncio.FIRST_COMPLETED)
        if self.server.failed.done():
            finishing.cancel()
            await asyncio.gather(finishing, return_exceptions=True)
            return error or self.server.failed.result()
        return await finishing

    async def _publish_end(self, error: str) -> str:
        try:
            if not error:
                await self._let_the_best_be_chosen()
            await self.say(RunFinished(steps=self.steps, error=error))
        except BusError as failed:
            return error or f"the end of the run could not be written to its log: {failed}"
        return error

    def _where(self) -> str:
        """What the commands that look for runs must be told of this one's place."""
        return "" if self.recipe.folder == USUAL_FOLDER else f" --folder {self.recipe.folder}"

    async def _recall(self) -> None:
        """Know what the log says, and say of those who could not say it themselves that they have ended with the run."""
        self.known = await self.readers.catch_up()
        self._take_up(self.state)
        if not self.known:
            raise SetupError(f"the log of run '{self.recipe.run}' is empty: nothing had happened; start it again with `areal run`")
        if self.over.done():
            raise SetupError(
                f"run '{self.recipe.run}' has done all its {self.recipe.steps} steps; to train on, start another run with "
                f"model={self.folder.checkpoints / f'step-{self.recipe.steps}'}"
            )
        for actor, process in self.serving.items():
            await self.say(ActorStopped(actor=actor, process=process))
        self.serving = {}

    def _take_up(self, state: RunState) -> None:
        """Go on from what the log says of earlier lives."""
        self.view.state.restore(state.snapshot())
        self.chaos.take_up(steps=state.steps[-1].number if state.steps else 0, injected=state.injected)
        self.serving = dict(state.serving)
        self.steps = state.steps[-1].number if state.steps else 0
        self.has_weights = state.weight_version >= 0
        self.saved_at = state.checkpoint.step if state.checkpoint else -1
        measured = [event.weight_version for event in state.evaluations] + [event.weight_version for event in state.losses]
        self.evaluations_due -= measured.count(self.recipe.steps)
        self._look_for_the_end()

    async def _start(self, *, trainer_first: bool) -> None:
        """Start all processes; where a trainer has to come to the weights of before, nobody begins without them."""
        if trainer_first and not self.recipe.learns_from_examples():
            await self._start_processes("trainer")
            await self.published.wait()
        await self._start_processes()
        self.all_started = True

    async def _start_processes(self, kind: str = "") -> None:
        await self.supervisor.start(self.supervisor.startable(kind))

    def _started(self, starting: asyncio.Task[None]) -> None:
        """A process that cannot be started ends the run with its error."""
        if not starting.cancelled() and (error := starting.exception()) is not None and not self.over.done():
            self.over.set_exception(error)

    def _ear_ended(self, ear: asyncio.Task[None]) -> None:
        """The supervisor that can no longer read the log knows nothing of the run: it ends with the reader's own words."""
        if not ear.cancelled() and (error := ear.exception()) is not None and not self.over.done():
            self.over.set_result(str(error)) if isinstance(error, BusError) else self.over.set_exception(error)

    async def _outcome(self) -> str:
        """Wait for the end of the run, whatever ends it."""
        interrupted = asyncio.create_task(self.interrupted.wait())
        waiting: set[asyncio.Future[Any]] = {self.over, self.supervisor.failed, self.server.failed, self.used_up, interrupted}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for ended in (self.server.failed, self.over, self.supervisor.failed):
                if ended.done():
                    return ended.result()
            return await self._save_and_stop(f"{self.used_up.result()}; ended" if self.used_up.done() else "interrupted")
        finally:
            interrupted.cancel()

    async def _save_and_stop(self, why: str) -> str:
        """Before the last step: let the trainer save what it has; a second signal does without."""
        if not self.has_weights:
            return f"{why} before the first weights; there was nothing to save"
        if not self.all_started:
            return f"{why} on the way to where the run had been; nothing new was trained"
        was_interrupted = self.interrupted.is_set()
        self.interrupted.clear()
        self.saved_again.clear()
        await self.say(RunStopping(reason=why))
        impatient = asyncio.create_task(self.interrupted.wait())
        saved = asyncio.create_task(self.saved_again.wait())
        ends: set[asyncio.Future[Any]] = {impatient, saved, self.supervisor.failed, self.server.failed}
        await asyncio.wait(ends, timeout=self.recipe.watchdog.save_seconds, return_when=asyncio.FIRST_COMPLETED)
        if was_interrupted:
            self.interrupted.set()
        impatient.cancel()
        saved.cancel()
        if self.server.failed.done():
            return f"{why}; {self.server.failed.result()}"
        if not self.saved_again.is_set():
            return f"{why}; the trainer did not save a checkpoint within watchdog.save_seconds = {self.recipe.watchdog.save_seconds:g}"
        return f"{why} after {self.steps} of {self.recipe.steps} steps; the checkpoint of step {self.saved_at} is complete"

    def _interrupt(self) -> None:
        self.interrupted.set()

    async def _let_the_best_be_chosen(self) -> None:
        """Wait until the checkpointer is done with the last evaluation: what it says of that belongs to the run."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_CHOICE_SECONDS):
                while await self.bus.position("checkpointer-0") < self.judged:  # noqa: ASYNC110 - it is in another process
                    await asyncio.sleep(POLL_SECONDS)

    async def _hear_events(self) -> None:
        by_subject = {kind.subject: kind for kind in KINDS}
        async for envelope in self.bus.log(after=self.known, follow=True):
            message = envelope.open(by_subject[envelope.subject])
            self.read_to = envelope.sequence
            self.readers.heard(envelope)
            if isinstance(message, SnapshotStored):
                self.retention.heard(message, self.state.checkpoints)
            if isinstance(message, EvaluationCompleted | LossEvaluated):
                self.judged = envelope.sequence
            self._heard(message, envelope.time)

    async def _hear_telemetry(self) -> None:
        async with self.bus.telemetry(Heartbeat, TrainerPhase, WatchProbe) as inbox:
            async for delivery in inbox:
                self._heard(delivery.message, delivery.envelope.time)

    def _is_ending(self) -> bool:
        """Whether something has asked the run to end."""
        return self.interrupted.is_set() or any(end.done() for end in (self.over, self.supervisor.failed, self.used_up))

    def _heard(self, message: Message, sent: float) -> None:
        self.chaos.receive(message)
        self.health.receive(message, sent)
        if isinstance(message, Heartbeat | ActorStarted | ActorFailed | ActorStopped):
            self._heard_of_actor(message)
        elif isinstance(message, StepCompleted):
            self.steps = max(self.steps, message.step)
        elif isinstance(message, WeightsPublished):
            self.has_weights = True
            self.published.set()
        elif isinstance(message, GroupsUsedUp | TrainingHalted) and not self.used_up.done():
            self.used_up.set_result(message.reason)
        elif isinstance(message, CheckpointSaved):
            self.saved_at = message.step
            self.saved_again.set()
        elif isinstance(message, EvaluationCompleted | LossEvaluated) and message.weight_version == self.recipe.steps:
            self.evaluations_due -= 1
        self._look_for_the_end()

    def _look_for_the_end(self) -> None:
        """The run has done what the recipe asked when the last step is saved and evaluated."""
        if self.saved_at == self.recipe.steps and self.evaluations_due <= 0 and not self.over.done():
            self.over.set_result("")

    def _heard_of_actor(self, message: Heartbeat | ActorStarted | ActorFailed | ActorStopped) -> None:
        if isinstance(message, Heartbeat):
            self.usage[message.process] = Usage(cpu_seconds=message.cpu_seconds, peak_memory_bytes=message.peak_memory_bytes)
        elif isinstance(message, ActorStarted):
            self.serving[message.actor] = message.process
        else:
            self.serving.pop(message.actor, None)

    def _health(self) -> HealthMonitor:
        return HealthMonitor(self.recipe, self.bus, self.supervisor, self.say, self._end)

    def _end(self, reason: str) -> None:
        """The run cannot go on."""
        if not self.over.done():
            self.over.set_result(reason)

    def _bus_answers(self) -> bool:
        """Whether anything can still be published or read."""
        return not self.server.failed.done() and not self.health.server_silent

    async def _watch_disk(self) -> None:
        """Keep outside the log how far it reaches, so that a log that is shorter later is found, and look at free space."""
        noted = 0
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self.read_to != noted:
                noted = self.read_to
                note_log_end(self.folder, noted)
            if low := self.disk.look():
                await self.say(low)
            if self.disk.full and not self.used_up.done():
                self.used_up.set_result(self.disk.full)
