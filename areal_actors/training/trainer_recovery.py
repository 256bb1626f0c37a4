"""Recovery of the trainer: the newest intact checkpoint, then a replay of the steps since, each compared with the log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from areal_actors.core.errors import CheckpointError, StepMismatch
from areal_actors.messages import BatchFormed, CheckpointCommitted, CheckpointDamaged, ExamplesDrawn, StepDiffered, TrainerRolledBack
from areal_actors.runtime.actor import Context
from areal_actors.sequences.step_metrics import examples_checksum, rows_checksum
from areal_actors.training.checkpoint_store import CheckpointStore
from areal_actors.training.engine import TrainingEngine
from areal_actors.training.trainer_history import TrainedHistory
from areal_actors.training.trainer_steps import CountedStep
from bus.errors import LogUnavailable

RecoveryEvent = TrainerRolledBack | CheckpointDamaged | StepDiffered
"""Events of a recovery."""
StepInput = BatchFormed | ExamplesDrawn
"""Input of a step."""


class StepRecovery:
    """Loads checkpoints and replays steps; collects the events to emit."""

    def __init__(
        self,
        history: TrainedHistory,
        checkpoints: CheckpointStore,
        take: Callable[[TrainingEngine, StepInput, Context], Awaitable[CountedStep]],
        kind: type[StepInput],
    ) -> None:
        """`take` takes the step of an event of type `kind`."""
        self.history = history
        self.checkpoints = checkpoints
        self.take = take
        self.kind = kind
        self.tried_earlier = False
        """A replayed step differed, and an earlier checkpoint was tried, which happens once."""
        self.events: list[RecoveryEvent] = []

    def take_events(self) -> list[RecoveryEvent]:
        """Returns the events since the last call."""
        events, self.events = self.events, []
        return events

    async def replay_to(self, engine: TrainingEngine, context: Context, weight_version: int) -> None:
        """Replay lost steps until the engine is at this version.

        Raises:
            StepMismatch: a step differs from the log, also when replayed from an earlier checkpoint.
            CheckpointError: no checkpoint is left, or an intact checkpoint does not fit.
            RanksLost: ranks were lost during the replay.
        """
        while True:
            try:
                await self._load(engine)
                if engine.weight_version == 0 < weight_version:
                    await asyncio.to_thread(self.check_weights, engine)
                while engine.weight_version < weight_version:
                    event = await self._batch(engine.weight_version, context)
                    self.check_rows(event, await self.take(engine, event, context))
                    await asyncio.to_thread(self.check_weights, engine)
            except StepMismatch as mismatch:
                saved = self.history.checkpoint
                if self.tried_earlier or saved is None or len(self.history.checkpoints) == 1:
                    raise
                self.tried_earlier = True
                await self._set_aside(saved, str(mismatch))
                await self._load(engine, anew=True)
            else:
                return

    async def _load(self, engine: TrainingEngine, *, anew: bool = False) -> None:
        """Load the newest checkpoint that is sound, if the engine is behind it, or in any case (`anew`)."""
        while (saved := self.history.checkpoint) is not None and (anew or engine.weight_version < saved.step):
            if self.checkpoints.was_superseded(saved.folder):  # a batch of before the resumption may arrive before the event of it
                self.history.lost(saved.step)
                continue
            try:
                await asyncio.to_thread(self.checkpoints.verify, saved)
            except CheckpointError as error:
                await self._set_aside(saved, str(error))
                continue
            try:
                await asyncio.to_thread(engine.load, str(self.checkpoints.path(saved.folder)))
            except CheckpointError as error:
                if saved.manifest:
                    raise
                await self._set_aside(saved, str(error))
                continue
            await asyncio.to_thread(self.check_weights, engine)
            return
        if saved is None and anew:
            raise CheckpointError("no intact checkpoint is left; `areal resume` replays all steps from the log")

    async def _set_aside(self, saved: CheckpointCommitted, reason: str) -> None:
        """Set a checkpoint aside and use the one before it."""
        aside = await asyncio.to_thread(self.checkpoints.set_aside, saved.folder)
        before = self.history.lost(saved.step)
        self.events.append(CheckpointDamaged(step=saved.step, folder=aside, weight_version=before.step if before else 0, reason=reason))

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

    def check_rows(self, event: StepInput, step: CountedStep) -> str:
        """Compare the rows of a step with the log's; returns their checksum.

        Raises:
            StepMismatch: they differ and must not.
        """
        found = rows_checksum(step.rows) if isinstance(event, BatchFormed) else examples_checksum(step.rows)
        self.note(self.history.check_rows(event.step + 1, found))
        return found

    def check_weights(self, engine: TrainingEngine) -> str:
        """Compare the engine's weights with the log's; returns their checksum. Slow: run in a thread.

        Raises:
            StepMismatch: they differ and must not.
        """
        found = engine.checksum()
        self.note(self.history.check_weights(engine.weight_version, found))
        return found

    def note(self, differed: StepDiffered | None) -> None:
        """Queue the event of an allowed difference."""
        if differed is not None:
            self.events.append(differed)
