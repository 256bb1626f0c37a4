"""The trainer's way back to where the run is: the newest checkpoint that is sound, then the steps since, each compared with the log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from areal_actors.actor import Turn
from areal_actors.actors.trainer_history import TrainedHistory
from areal_actors.actors.trainer_steps import CountedStep
from areal_actors.engines.base import TrainingEngine
from areal_actors.engines.checkpoint_store import CheckpointStore
from areal_actors.errors import CheckpointError, StepMismatch
from areal_actors.messages import BatchFormed, CheckpointDamaged, CheckpointSaved, ExamplesDrawn, StepDiffered, TrainingFellBack
from areal_actors.steps.step_metrics import rows_checksum
from areal_actors.text.example_rows import checksum
from bus.errors import LogUnavailable

RecoveryEvent = TrainingFellBack | CheckpointDamaged | StepDiffered
"""What happened on the way."""
StepInput = BatchFormed | ExamplesDrawn
"""What a step is taken on."""


class StepRecovery:
    """Loads checkpoints and takes steps again; keeps what is to be emitted of it."""

    def __init__(
        self,
        history: TrainedHistory,
        checkpoints: CheckpointStore,
        take: Callable[[TrainingEngine, StepInput, Turn], Awaitable[CountedStep]],
        kind: type[StepInput],
    ) -> None:
        """`take` takes the step of an event of this kind."""
        self.history = history
        self.checkpoints = checkpoints
        self.take = take
        self.kind = kind
        self.tried_earlier = False
        """A step that was taken again differed, and an earlier checkpoint was tried; it is tried once."""
        self.events: list[RecoveryEvent] = []

    def take_events(self) -> list[RecoveryEvent]:
        """What has happened since the last call."""
        events, self.events = self.events, []
        return events

    async def replay_to(self, engine: TrainingEngine, turn: Turn, weight_version: int) -> None:
        """Bring an engine that has lost steps to this version.

        Raises:
            StepMismatch: a step differs from the log, also from an earlier checkpoint.
            CheckpointError: there is nothing left to go back to, or a sound checkpoint does not fit.
            RanksLost: the engine was lost on the way.
        """
        while True:
            try:
                await self._load(engine)
                if engine.weight_version == 0 < weight_version:
                    await asyncio.to_thread(self.check_weights, engine)
                while engine.weight_version < weight_version:
                    event = await self._batch(engine.weight_version, turn)
                    self.check_rows(event, await self.take(engine, event, turn))
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
            raise CheckpointError("no checkpoint is left to go back to; `areal resume` takes all steps again from the log")

    async def _set_aside(self, saved: CheckpointSaved, reason: str) -> None:
        """Leave a checkpoint for the one before it."""
        aside = await asyncio.to_thread(self.checkpoints.set_aside, saved.folder)
        before = self.history.lost(saved.step)
        self.events.append(CheckpointDamaged(step=saved.step, folder=aside, weight_version=before.step if before else 0, reason=reason))

    async def _batch(self, weight_version: int, turn: Turn) -> StepInput:
        """What was trained on this version, from the log."""
        try:
            (envelope,) = await turn.read([self.history.batches[weight_version]])
        except (KeyError, LogUnavailable) as error:
            raise CheckpointError(
                f"no checkpoint is left to go back to, and the log does not reach back to step {weight_version + 1} ({error}); "
                "start another run with model= a checkpoint that you trust"
            ) from error
        return envelope.open(self.kind)

    def check_rows(self, event: StepInput, step: CountedStep) -> str:
        """The checksum of the rows of a step, compared with the log's.

        Raises:
            StepMismatch: they differ where they may not.
        """
        found = rows_checksum(step.rows) if isinstance(event, BatchFormed) else checksum(step.rows)
        self.note(self.history.check_rows(event.step + 1, found))
        return found

    def check_weights(self, engine: TrainingEngine) -> str:
        """The checksum of the engine's weights, compared with the log's. Slow: for a thread.

        Raises:
            StepMismatch: they differ where they may not.
        """
        found = engine.checksum()
        self.note(self.history.check_weights(engine.weight_version, found))
        return found

    def note(self, differed: StepDiffered | None) -> None:
        """Have a difference emitted that may be."""
        if differed is not None:
            self.events.append(differed)
