"""The engine of the trainer across restarts and losses of ranks.

It is brought to the version of the run: the newest intact checkpoint, then a replay of the steps since, each compared
with the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from areal_actors.core.command import COMMAND
from areal_actors.core.errors import CheckpointError, RanksLost, StepMismatch
from areal_actors.core.values import TrainingSequence
from areal_actors.messages import (
    BatchFormed,
    CheckpointCommitted,
    CheckpointDamaged,
    ExamplesDrawn,
    StepDiffered,
    TrainerProgress,
    TrainerRolledBack,
)
from areal_actors.runtime.actor import Context
from areal_actors.sequences.step_metrics import examples_checksum, sequences_checksum
from areal_actors.training.checkpoint_store import CheckpointStore
from areal_actors.training.engine import EngineFactory, TrainingEngine
from areal_actors.training.trainer_history import TrainedHistory
from areal_bus.errors import LogUnavailable

T = TypeVar("T")

RecoveryEvent = TrainerRolledBack | CheckpointDamaged | StepDiffered
"""Events of a recovery."""
StepInput = BatchFormed | ExamplesDrawn
"""Input of a step."""
MAX_ROLLBACKS = 3
"""Maximum of rollbacks between two completed steps."""


class RecoveredEngine:
    """Makes the engine, loads checkpoints and replays steps; collects the events to emit."""

    def __init__(
        self,
        factory: EngineFactory,
        history: TrainedHistory,
        checkpoints: CheckpointStore,
        take: Callable[[StepInput, Context], Awaitable[Sequence[TrainingSequence]]],
        kind: type[StepInput],
    ) -> None:
        """`take` takes the step of an event of type `kind` and returns its trained sequences."""
        self.factory = factory
        self.history = history
        self.checkpoints = checkpoints
        self.take = take
        self.kind = kind
        self.engine: TrainingEngine | None = None
        self.weight_version = -1
        """Steps of the run; the engine's own version may be lower after a rollback."""
        self.rollbacks = 0
        """Rollbacks since the last completed step."""
        self.tried_earlier = False
        """A replayed step differed, and an earlier checkpoint was tried, which happens once."""
        self.events: list[RecoveryEvent] = []

    def take_events(self) -> list[RecoveryEvent]:
        """Returns the events since the last call; resets the count of rollbacks."""
        self.rollbacks = 0
        events, self.events = self.events, []
        return events

    def require(self) -> TrainingEngine:
        """Returns the engine, which `prepare` made."""
        if self.engine is None:
            raise RuntimeError("the trainer received a batch before the run started")
        return self.engine

    async def prepare(self) -> AsyncIterator[TrainerProgress]:
        """Make the engine in a thread and yield its progress."""
        loop = asyncio.get_running_loop()
        phases: asyncio.Queue[TrainerProgress | None] = asyncio.Queue()

        def progress(phase: str, done: int, total: int, metrics: dict[str, float]) -> None:
            loop.call_soon_threadsafe(
                phases.put_nowait, TrainerProgress(phase=phase, done=done, total=total, metrics=metrics)
            )

        preparing = asyncio.create_task(asyncio.to_thread(self.factory, progress))
        preparing.add_done_callback(lambda _: phases.put_nowait(None))
        while (phase := await phases.get()) is not None:
            yield phase
        self.engine = await preparing
        self.weight_version = max(self.weight_version, self.engine.weight_version)

    async def catch_up(self, context: Context) -> AsyncIterator[TrainerProgress]:
        """Replay the steps of the run that a new engine lacks, one by one; usually none."""
        engine = self.require()
        if (saved := self.history.checkpoint) is not None and engine.weight_version < saved.step:
            unverified = "" if saved.manifest else " (written by an earlier version, without a manifest to verify it)"
            yield TrainerProgress(phase=f"loading the checkpoint{unverified}")
            await self.call(context, lambda _: None, saved.step)
        first = engine.weight_version
        while engine.weight_version < self.weight_version:
            done = max(engine.weight_version - first, 0)
            yield TrainerProgress(phase="taking steps again", done=done, total=self.weight_version - first)
            await self.call(context, lambda _: None, min(first + done + 1, self.weight_version))

    async def call(self, context: Context, call: Callable[[TrainingEngine], T], at: int | None = None) -> T:
        """Call the engine in a thread, at the current version or at version `at`.

        Replays the steps before if the engine is behind.

        Raises:
            RanksLost: more than `MAX_ROLLBACKS` times.
            StepMismatch: a replayed step differs from the log, also from an earlier checkpoint.
            CheckpointError: no checkpoint is left, or an intact checkpoint does not fit.
        """
        engine = self.require()
        while True:
            try:
                await self._replay_to(engine, context, self.weight_version if at is None else at)
                return await asyncio.to_thread(call, engine)
            except RanksLost as error:
                if self.rollbacks == MAX_ROLLBACKS:
                    raise
                self.rollbacks += 1
                back = self.history.checkpoint.step if self.history.checkpoint else 0
                self.events.append(TrainerRolledBack(step=self.weight_version, weight_version=back, reason=str(error)))

    async def _replay_to(self, engine: TrainingEngine, context: Context, weight_version: int) -> None:
        while True:
            try:
                await self._load(engine)
                if engine.weight_version == 0 < weight_version:
                    await asyncio.to_thread(self.check_weights, engine)
                while engine.weight_version < weight_version:
                    event = await self._batch(engine.weight_version, context)
                    self.check_sequences(event, await self.take(event, context))
                    await asyncio.to_thread(self.check_weights, engine)
            except StepMismatch as mismatch:
                saved = self.history.checkpoint
                if self.tried_earlier or saved is None or len(self.history.checkpoints) == 1:
                    raise
                self.tried_earlier = True
                await self._set_aside(saved, mismatch)
                await self._load(engine, anew=True)
            else:
                return

    async def _load(self, engine: TrainingEngine, *, anew: bool = False) -> None:
        """Load the newest checkpoint that is sound, if the engine is behind it, or in any case (`anew`)."""
        while (saved := self.history.checkpoint) is not None and (anew or engine.weight_version < saved.step):
            if self.checkpoints.was_superseded(
                saved.folder
            ):  # a batch of before the resumption may arrive before the event of it
                self.history.remove_checkpoint(saved.step)
                continue
            verified = False
            try:
                await asyncio.to_thread(self.checkpoints.verify, saved)
                verified = bool(saved.manifest)
                await asyncio.to_thread(engine.load, str(self.checkpoints.path(saved.folder)))
            except CheckpointError as error:
                if verified:
                    raise
                await self._set_aside(saved, error)
                continue
            await asyncio.to_thread(self.check_weights, engine)
            return
        if saved is None and anew:
            raise CheckpointError(f"no intact checkpoint is left; `{COMMAND} resume` replays all steps from the log")

    async def _set_aside(self, saved: CheckpointCommitted, reason: Exception) -> None:
        """Set a checkpoint aside and use the one before it."""
        aside = await asyncio.to_thread(self.checkpoints.set_aside, saved.folder)
        before = self.history.remove_checkpoint(saved.step)
        back = before.step if before else 0
        self.events.append(CheckpointDamaged(step=saved.step, folder=aside, weight_version=back, reason=str(reason)))

    async def _batch(self, weight_version: int, context: Context) -> StepInput:
        """Reads the input of the step on this version from the log."""
        try:
            (envelope,) = await context.read([self.history.batches[weight_version]])
        except (KeyError, LogUnavailable) as error:
            raise CheckpointError(
                f"no intact checkpoint is left, and the log no longer has step {weight_version + 1} ({error}); "
                "start another run with model= a checkpoint that you trust"
            ) from error
        return envelope.open(self.kind)

    def check_sequences(self, event: StepInput, sequences: Sequence[TrainingSequence]) -> str:
        """Compare the trained sequences of a step with the log's; returns their checksum.

        Raises:
            StepMismatch: they differ and must not.
        """
        checksum = self.checksum_of(event, sequences)
        self.note(self.history.check("sequences", event.step + 1, checksum))
        return checksum

    def checksum_of(self, event: StepInput, sequences: Sequence[TrainingSequence]) -> str:
        """Checksum of the trained sequences of a step."""
        return sequences_checksum(sequences) if isinstance(event, BatchFormed) else examples_checksum(sequences)

    def check_weights(self, engine: TrainingEngine) -> str:
        """Compare the engine's weights with the log's; returns their checksum. Slow: run in a thread.

        Raises:
            StepMismatch: they differ and must not.
        """
        checksum = engine.checksum()
        self.note(self.history.check("weights", engine.weight_version, checksum))
        return checksum

    def note(self, differed: StepDiffered | None) -> None:
        """Queue the event of an allowed difference."""
        if differed is not None:
            self.events.append(differed)
