"""The main loop of a run: its processes, health checks, display and end."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Any

import msgspec
from rich.console import Console

from areal_actors.audit.fold import AuditFold
from areal_actors.chaos.injector import Chaos, FaultTargets
from areal_actors.core.command import COMMAND
from areal_actors.core.errors import SetupError
from areal_actors.core.programs import typed_path
from areal_actors.core.snapshots import SnapshotStore
from areal_actors.core.values import Value
from areal_actors.display.fullscreen import is_screen
from areal_actors.display.monitor import follow
from areal_actors.display.run_state import RunState
from areal_actors.display.safe_console import SafeConsole
from areal_actors.display.snapshot_start import AUDIT, RUN_STATE
from areal_actors.display.summary import write_summary
from areal_actors.display.view import RunView
from areal_actors.folder.next_commands import next_commands, run_command
from areal_actors.folder.phase_times import keep_times, usual_times
from areal_actors.folder.run_folder import RunFolder
from areal_actors.hosts.admission import Joining
from areal_actors.lint.run_lint import RunLint
from areal_actors.messages import (
    KINDS,
    ActorStopped,
    CheckpointCommitted,
    EvaluationCompleted,
    FilterExhausted,
    Heartbeat,
    LossEvaluated,
    RunFinished,
    RunResumed,
    RunStarted,
    RunStopping,
    SnapshotStored,
    StepCompleted,
    TrainingHalted,
    WeightsPublished,
    WorkerLeft,
)
from areal_actors.proof.keeper import ProofKeeper
from areal_actors.recipe.recipe import Recipe
from areal_actors.recovery.log_recovery import note_log_end
from areal_actors.recovery.log_retention import FOLDING, LogReaders, LogRetention, Reader, folds_of
from areal_actors.run.judge_check import calibrate_judges
from areal_actors.supervision.disk_watch import DiskWatch
from areal_actors.supervision.health import LOOK_SECONDS
from areal_actors.supervision.load_watch import LoadWatch
from areal_actors.supervision.nats_server import RunServer
from areal_actors.supervision.run_session import Launch, access, on_interrupt
from areal_bus.errors import BusError, LogUnavailable, NoReply, ServerUnavailable
from areal_bus.message import Message
from areal_bus.nats import NatsBus
from areal_bus.shared_times import seconds_to_next

SHOW_SECONDS = 2.0
"""Time for the display to catch up with the end of the run."""
BEST_CHECKPOINT_SECONDS = 10.0
"""Time for the checkpointer to choose the best checkpoint after the last evaluation."""
POLL_SECONDS = 0.05
FINISHED, FAILED, INTERRUPTED = 0, 1, 130


class Usage(Value):
    """Resource usage of a process by its last heartbeat."""

    cpu_seconds: float
    peak_memory_bytes: int


class RunLoop(Launch):
    """Runs a new or resumed run from its first process to its last."""

    def __init__(self, recipe: Recipe, folder: RunFolder, bus: NatsBus, server: RunServer) -> None:
        super().__init__(recipe, folder, bus, server)
        self.disk = DiskWatch(recipe.disk, folder)
        self.chaos = Chaos(
            recipe.chaos, FaultTargets(folder.path, self.supervisor.alive, self.supervisor.kinds()), self.publish
        )
        self.view = RunView(usual_times(recipe, folder.path))
        self.view.hint = "Ctrl-C saves a checkpoint and ends the run"
        self.view.access = access(recipe, folder)
        supervisor = self.supervisor
        self.joining = (
            Joining(recipe, folder, bus, server, self.health, self.publish, supervisor.start)
            if recipe.bus.host
            else None
        )
        self.load = LoadWatch(recipe, self.publish)
        self.lint = RunLint(recipe, run_command("show", folder.path.name, recipe.folder))
        self.signals = 0
        self.state = RunState()
        """State of the run by its log, of this launch and earlier ones; later readers start from its snapshots."""
        store = SnapshotStore(folder.snapshots)
        readers: dict[str, Reader] = {RUN_STATE: self.state, AUDIT: AuditFold()}
        self.readers = LogReaders(bus, store, readers, self.publish)
        self.proofs = ProofKeeper(recipe, folder)
        self.retention = LogRetention(
            recipe.log,
            bus,
            store,
            folds=folds_of(self.supervisor.instances().items(), FOLDING, readers),
            keep_last=recipe.checkpoint.keep_last,
            blobs=folder.blobs,
            publish=self.publish,
        )
        self.known = 0
        """Last event of earlier launches of the run."""
        self.read_to = 0
        """Last event that was read."""
        self.all_started = False
        self.published = asyncio.Event()
        """Set once the trainer has published weights in this launch."""
        self.steps = 0
        self.usage: dict[str, Usage] = {}
        self.evaluated_at = 0
        """Sequence of the newest evaluation in the log."""
        self.saved_again = asyncio.Event()
        self.used_up: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Resolved with the reason why training on is useless; a checkpoint is saved first."""

    async def run(self, opening: RunStarted | RunResumed) -> int:
        """Start all processes, watch them, and end them; returns the exit status.

        Raises:
            SetupError: the run to be resumed is already complete.
        """
        await self._open(opening)
        console = SafeConsole(file=sys.stdout)
        on_interrupt(self.interrupted, self._answer_signal)
        showing = asyncio.create_task(self._show(console))
        if described := self.recipe.chaos.describe():
            sys.stderr.write(f"chaos is on: FAULTS ARE INJECTED INTO THIS RUN: {described}\n")
        injecting = self.chaos.run(lambda: self.all_started, self._is_ending)
        listeners = [self._receive_events(), self._watch_disk(), injecting, self.load.watch()]
        if self.joining is not None:
            sys.stderr.write(f"{await self.joining.open(self.state.joined)}\n")
            listeners += [self.joining.serve(), self.joining.objects.watch()]
        try:
            async with self.supervise(*listeners):
                await self.chaos.open(self.server.addresses.owner.url)
                starting = asyncio.create_task(self._start(trainer_first=isinstance(opening, RunResumed)))
                starting.add_done_callback(self.end_with_error)
                try:
                    error = await self._outcome()
                    if self.bus_answers():
                        error = await self._finish(error)
                        with contextlib.suppress(TimeoutError, BusError):
                            await asyncio.wait_for(asyncio.shield(showing), SHOW_SECONDS)
                finally:
                    starting.cancel()
        finally:
            if self.joining is not None:
                await self.joining.close()
            await self.retention.close()
            await self.readers.close()
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)
            await self.chaos.links.close()
            sys.stderr.write(self.folder.keep_usage(msgspec.json.encode(self.usage)))
            keep_times(self.recipe, self.folder.path, self.view.phases.seconds)
        if self.steps and self.bus_answers():
            audit = run_command("audit", self.folder.path.name, self.recipe.folder)
            folded = (self.state, self.read_to) if self.read_to else None
            console.print(await write_summary(self.bus, self.folder.path, self._following, audit, folded), crop=False)
        if error:
            for line in self.lint.conclude():
                sys.stderr.write(f"{line}\n")
            sys.stderr.write(f"run '{self.recipe.run}' ended early: {error}\n")
            if self.known or self.steps:
                sys.stderr.write(f"to resume: {run_command('resume', self.folder.path.name, self.recipe.folder)}\n")
        return INTERRUPTED if self.interrupted.is_set() else FAILED if error else FINISHED

    async def _open(self, opening: RunStarted | RunResumed) -> None:
        if isinstance(opening, RunResumed):
            await self._catch_up()
        await self.publish(opening)
        if isinstance(opening, RunStarted):
            for calibrated in await calibrate_judges(self.recipe):  # asked before: the answers are kept
                await self.publish(calibrated)

    async def _show(self, console: Console) -> None:
        """Show the run until it is finished.

        Where the bus fails a display, it begins again with the state of the run.
        """
        after = self.known
        while True:
            try:
                return await follow(self.bus, self.view, console, live=is_screen(console), after=after)
            except (LogUnavailable, NoReply, ServerUnavailable, OSError) as error:
                sys.stderr.write(f"the display was interrupted: {error}\n")
            await asyncio.sleep(LOOK_SECONDS)
            self.view.state = RunState()
            self.view.state.restore(self.state.snapshot())
            after = self.read_to

    def _answer_signal(self, name: str) -> None:
        """Show at once what a signal does; the log has it when the bus has answered."""
        self.signals += 1
        if self.state.weight_version < 0 or not self.all_started:
            answer = f"{name}: the run ends; there is nothing to save yet"
        elif self.signals > 1:
            answer = f"{name} again: the run ends without a further checkpoint"
        else:
            answer = f"{name}: a checkpoint is saved, then the run ends; {name} again ends it without one"
        self.view.interrupted = answer
        sys.stderr.write(f"{answer}\n")

    def _following(self, state: RunState) -> list[tuple[str, str]]:
        saved = (
            state.best_checkpoint.folder
            if state.best_checkpoint
            else state.checkpoint.folder
            if state.checkpoint
            else ""
        )
        return next_commands(
            self.folder, self.recipe.folder, saved, has_episodes=not self.recipe.learns_from_examples()
        )

    async def _finish(self, error: str) -> str:
        """Publish the end of the run; returns its error, which is the server's if the server has failed."""
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
                await self._wait_for_best_checkpoint()
            await self.publish(RunFinished(steps=self.steps, error=error))
            if self.joining is not None:
                await self.joining.dismiss(error)
        except BusError as failed:
            return error or f"the end of the run could not be written to its log: {failed}"
        return error

    async def _catch_up(self) -> None:
        """Fold the existing log, and publish the end of actors that could not publish it themselves."""
        self.known = await self.readers.catch_up()
        await self.proofs.catch_up(self.bus, self.known)
        state = self.state
        self.steps = state.steps[-1].number if state.steps else 0
        self.view.state.restore(state.snapshot())
        self.chaos.restore(steps=self.steps, injected=state.injected)
        if not self.known:
            raise SetupError(
                f"the log of run '{self.recipe.run}' is empty: nothing to resume; start it again with `{COMMAND} run`"
            )
        if self._is_complete():
            raise SetupError(
                f"run '{self.recipe.run}' has done all its {self.recipe.steps} steps; to train further, start another"
                f" run with model={typed_path(self.folder.checkpoints / f'step-{self.recipe.steps}')}"
            )
        for actor, process in dict(state.serving).items():
            await self.publish(ActorStopped(actor=actor, process=process))
        for worker in dict(state.members):
            await self.publish(WorkerLeft(worker=worker, reason="the run was stopped"))

    async def _start(self, *, trainer_first: bool) -> None:
        """Start all processes; in a resumed run, the trainer first restores the weights."""
        if trainer_first and not self.recipe.learns_from_examples():
            await self.supervisor.start(self.supervisor.startable("trainer"))
            await self.published.wait()
        await self.supervisor.start(self.supervisor.startable())
        self.all_started = True

    async def _outcome(self) -> str:
        """Wait for the end of the run; returns its error."""
        if (error := await self.first_end(self.used_up)) is not None:
            return error
        role = self.recipe.policy
        why = "interrupted" if role is None else f"run '{role.run}', whose agents call this policy, has ended"
        return await self._save_and_stop(f"{self.used_up.result()}; ended" if self.used_up.done() else why)

    async def _save_and_stop(self, why: str) -> str:
        """End before the last step: the trainer saves a checkpoint, unless a second signal arrives."""
        if self.state.weight_version < 0:
            return f"{why} before the first weights; there was nothing to save"
        if not self.all_started:
            return f"{why} while the run was being restored; nothing new was trained"
        was_interrupted = self.interrupted.is_set()
        self.interrupted.clear()
        self.saved_again.clear()
        await self.publish(RunStopping(reason=why))
        interrupted_again = asyncio.create_task(self.interrupted.wait())
        saved = asyncio.create_task(self.saved_again.wait())
        ends: set[asyncio.Future[Any]] = {interrupted_again, saved, self.supervisor.failed, self.server.failed}
        await asyncio.wait(ends, timeout=self.recipe.watchdog.save_seconds, return_when=asyncio.FIRST_COMPLETED)
        if was_interrupted:
            self.interrupted.set()
        interrupted_again.cancel()
        saved.cancel()
        if self.server.failed.done():
            return f"{why}; {self.server.failed.result()}"
        if not self.saved_again.is_set():
            return (
                f"{why}; the trainer did not save a checkpoint within watchdog.save_seconds ="
                f" {self.recipe.watchdog.save_seconds:g}"
            )
        return (
            f"{why} after {self.steps} of {self.recipe.steps} steps; the checkpoint of step {self._saved_step()} is"
            " complete"
        )

    async def _wait_for_best_checkpoint(self) -> None:
        """Wait until the checkpointer has handled the last evaluation, so that its events are in the log."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BEST_CHECKPOINT_SECONDS):
                # It is in another process
                while await self.bus.position("checkpointer-0") < self.evaluated_at:  # noqa: ASYNC110
                    await asyncio.sleep(POLL_SECONDS)

    async def _receive_events(self) -> None:
        by_subject = {kind.subject: kind for kind in KINDS}
        async for envelope in self.bus.log(after=self.known, follow=True):
            message = envelope.open(by_subject[envelope.subject])
            self.read_to = envelope.sequence
            self.readers.receive(envelope, message)
            await self.proofs.receive(envelope, message)
            if isinstance(message, SnapshotStored):
                self.retention.receive(message, self.state.checkpoints)
            if isinstance(message, EvaluationCompleted | LossEvaluated):
                self.evaluated_at = envelope.sequence
            self.handle(message, envelope.time)

    def _is_ending(self) -> bool:
        """Returns True if the run has been asked to end."""
        return self.interrupted.is_set() or any(end.done() for end in (self.over, self.supervisor.failed, self.used_up))

    def handle(self, message: Message, sent: float) -> None:
        """Fold a message; `sent` is in seconds since the epoch by its sender's clock."""
        super().handle(message, sent)
        self.chaos.health.receive(message)
        self.load.receive(message, sent)
        for line in self.lint.receive(message):
            sys.stderr.write(f"{line}\n")
        if isinstance(message, Heartbeat):
            self.usage[message.process] = Usage(
                cpu_seconds=message.cpu_seconds, peak_memory_bytes=message.peak_memory_bytes
            )
        elif isinstance(message, StepCompleted):
            self.steps = max(self.steps, message.step)
        elif isinstance(message, WeightsPublished):
            self.published.set()
            if self.joining is not None:
                self.joining.weights_published(message)
        elif isinstance(message, FilterExhausted | TrainingHalted) and not self.used_up.done():
            self.used_up.set_result(message.reason)
        elif isinstance(message, CheckpointCommitted):
            self.saved_again.set()
        if self._is_complete():
            self.end("")

    def _saved_step(self) -> int:
        return self.state.checkpoint.step if self.state.checkpoint else -1

    def _is_complete(self) -> bool:
        """Returns True if the last step is saved and evaluated."""
        if self._saved_step() != self.recipe.steps:
            return False
        due = (1 if self.recipe.learns_from_examples() else 2) if self.recipe.evaluation.tasks else 0
        measured = [event.weight_version for event in self.state.evaluations] + [
            event.weight_version for event in self.state.losses
        ]
        return measured.count(self.recipe.steps) >= due

    async def _watch_disk(self) -> None:
        """Store the log's length outside of it, to detect a truncated log later, and check free disk space."""
        noted = 0
        while True:
            await asyncio.sleep(seconds_to_next(LOOK_SECONDS))
            if self.read_to != noted:
                noted = self.read_to
                note_log_end(self.folder, noted)
            if low := self.disk.check():
                await self.publish(low)
            if self.disk.full and not self.used_up.done():
                self.used_up.set_result(self.disk.full)
