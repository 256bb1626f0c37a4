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

from areal_actors.display.monitor import follow
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
    RunStalled,
    RunStarted,
    RunStopping,
    StepCompleted,
    TrainerPhase,
    TrainingHalted,
    WeightsPublished,
)
from areal_actors.recipe.recipe import Recipe
from areal_actors.run.supervisor import Supervisor
from areal_actors.run.watchdog import HEARD, Watchdog
from areal_actors.run_folder import RunFolder
from areal_actors.values import Value
from bus.base import Stamp
from bus.message import Event, Message
from bus.nats import NatsBus

START_SECONDS = 120.0
"""For every actor to serve its mailbox."""
SAVE_SECONDS = 60.0
"""For the last checkpoint of a run that is interrupted."""
SHOW_SECONDS = 2.0
"""For the display to catch up with the end of the run."""
LAST_CHOICE_SECONDS = 10.0
"""For the checkpointer to choose the best after the last evaluation, which it hears when we do."""
POLL_SECONDS = 0.05
LOOK_SECONDS = 0.5
USUAL_FOLDER = "runs"
FINISHED, FAILED, INTERRUPTED = 0, 1, 130


class Usage(Value):
    """What a process has used, as its last heartbeat said."""

    cpu_seconds: float
    peak_memory_bytes: int


class RunLife:
    """From the first process to the last: of a run that begins, or of one that goes on."""

    def __init__(self, recipe: Recipe, folder: RunFolder, bus: NatsBus, server_dead: asyncio.Future[str]) -> None:
        self.recipe, self.folder, self.bus, self.server_dead = recipe, folder, bus, server_dead
        self.supervisor = Supervisor(recipe, folder, self.say)
        self.watchdog = Watchdog(recipe.watchdog, time.time())
        self.view = RunView()
        self.known = 0
        """The newest event that an earlier life has left."""
        self.awaited: set[str] = set()
        """Actors whose processes have been started and that do not serve their mailbox yet."""
        self.awaited_since = 0.0
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
        ears = [asyncio.create_task(self._hear_events()), asyncio.create_task(self._hear_telemetry()), asyncio.create_task(self._look())]
        starting = asyncio.create_task(self._start(trainer_first=isinstance(opening, RunResumed)))
        starting.add_done_callback(self._started)
        try:
            error = await self._outcome()
            if not self.server_dead.done():
                if not error:
                    await self._let_the_best_be_chosen()
                await self.say(RunFinished(steps=self.steps, error=error))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(showing), SHOW_SECONDS)
        finally:
            starting.cancel()
            await self.supervisor.stop()
            for task in (*ears, showing):
                task.cancel()
            await asyncio.gather(*ears, showing, return_exceptions=True)
            self.folder.usage.write_bytes(msgspec.json.encode(self.usage))
        if self.steps and not self.server_dead.done():
            console.print(await write_summary(self.bus, self.folder.path))
        if error:
            sys.stderr.write(f"run '{self.recipe.run}' ended early: {error}\n")
            if self.known or self.steps:
                sys.stderr.write(f"to go on: areal resume {self.folder.path.name}{self._where()}\n")
        return INTERRUPTED if self.interrupted.is_set() else FAILED if error else FINISHED

    def _where(self) -> str:
        """What the commands that look for runs must be told of this one's place."""
        return "" if self.recipe.folder == USUAL_FOLDER else f" --folder {self.recipe.folder}"

    async def _recall(self) -> None:
        """Fold what there is in the log, and say of those who could not say it themselves that they have ended with the run."""
        by_subject = {kind.subject: kind for kind in KINDS}
        async for envelope in self.bus.log():
            self._heard(envelope.open(by_subject[envelope.subject]))
            self.view.heard(envelope)
            self.known = envelope.sequence
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
        self.published.clear()
        self.used_up = asyncio.get_running_loop().create_future()
        self.watchdog = Watchdog(self.recipe.watchdog, time.time())

    async def _start(self, *, trainer_first: bool) -> None:
        """Start all processes; where a trainer has to come to the weights of before, nobody begins without them."""
        if trainer_first and not self.recipe.learns_from_examples():
            await self._start_processes("trainer")
            await self.published.wait()
        await self._start_processes()
        self.all_started = True

    async def _start_processes(self, kind: str = "") -> None:
        self.awaited_since = time.time()
        names = self.supervisor.startable(kind)
        self.awaited |= self.supervisor.actors(names)
        await self.supervisor.start(names)

    def _started(self, starting: asyncio.Task[None]) -> None:
        """A process that cannot be started ends the run with its error."""
        if not starting.cancelled() and (error := starting.exception()) is not None and not self.over.done():
            self.over.set_exception(error)

    async def _outcome(self) -> str:
        """Wait for the end of the run, whatever ends it."""
        interrupted = asyncio.create_task(self.interrupted.wait())
        waiting: set[asyncio.Future[Any]] = {self.over, self.supervisor.failed, self.server_dead, self.used_up, interrupted}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for ended in (self.over, self.supervisor.failed, self.server_dead):
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
        ends: set[asyncio.Future[Any]] = {impatient, saved, self.supervisor.failed}
        await asyncio.wait(ends, timeout=SAVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if was_interrupted:
            self.interrupted.set()
        impatient.cancel()
        saved.cancel()
        if not self.saved_again.is_set():
            return f"{why}; the trainer did not save a checkpoint within {SAVE_SECONDS:g} s"
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
            if isinstance(message, EvaluationCompleted | LossEvaluated):
                self.judged = envelope.sequence
            self._heard(message)

    async def _hear_telemetry(self) -> None:
        async with self.bus.telemetry(Heartbeat, TrainerPhase) as inbox:
            async for delivery in inbox:
                self._heard(delivery.message)

    def _heard(self, message: Message) -> None:
        if isinstance(message, HEARD):
            self.watchdog.heard(message, time.time())
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
        if self.saved_at == self.recipe.steps and self.evaluations_due <= 0 and not self.over.done():
            self.over.set_result("")

    def _heard_of_actor(self, message: Heartbeat | ActorStarted | ActorFailed | ActorStopped) -> None:
        if isinstance(message, Heartbeat):
            self.usage[message.process] = Usage(cpu_seconds=message.cpu_seconds, peak_memory_bytes=message.peak_memory_bytes)
        elif isinstance(message, ActorStarted):
            self.awaited.discard(message.actor)
            self.serving[message.actor] = message.process
        else:
            self.serving.pop(message.actor, None)

    async def _look(self) -> None:
        """Now and then ask the watchdog what it thinks."""
        while not self.over.done():
            await asyncio.sleep(LOOK_SECONDS)
            now = time.time()
            for process in self.watchdog.silent_processes(now):
                self.supervisor.kill(process)
            if stall := self.watchdog.stalled(now):
                await self.say(RunStalled(sentence=stall[0], seconds=stall[1]))
            problem = self.watchdog.too_many_failures()
            if not problem and self.awaited and now - self.awaited_since > START_SECONDS:
                problem = f"{', '.join(sorted(self.awaited))} did not start within {START_SECONDS:g} s; see {self.folder.logs}"
            if problem and not self.over.done():
                self.over.set_result(problem)
