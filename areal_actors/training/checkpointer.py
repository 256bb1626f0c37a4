"""The checkpointer: schedules checkpoints, finalizes what the trainer wrote, and tracks the best checkpoint."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import psutil

from areal_actors.core.config import Config, NonNegativeInt, PositiveInt
from areal_actors.core.durable_files import atomic_write, storage_error
from areal_actors.messages import (
    BestCheckpointChosen,
    CheckpointCommitted,
    CheckpointDamaged,
    CheckpointStaged,
    EvaluationCompleted,
    LossEvaluated,
    RunResumed,
    RunStopping,
    SaveCheckpoint,
    StepCompleted,
)
from areal_actors.runtime.actor import Actor, Context, Emits, on
from areal_actors.training.checkpoint_retention import CheckpointRetention, Rating, Saved
from areal_actors.training.checkpoint_store import CHECKPOINTS
from areal_actors.weights.manifest import digest_of_manifest, write_manifest
from areal_bus.durability import sync, sync_store

_WRITING = ".writing-"
BEST = "best"
"""Name of the symlink to the best checkpoint; `best.json` has its metric."""


class CheckpointConfig(Config):
    """`[checkpoint]`."""

    every_steps: NonNegativeInt = 20
    """0 saves at the end only: after a crash the trainer then replays all steps."""
    keep_last: PositiveInt = 2
    """Number of newest checkpoints to keep."""
    keep_best: Literal["", "greedy", "sampled", "loss"] = ""
    """Also save one for every evaluation, and keep the best: by mean reward on held-out tasks with this sampling, or by
    the loss on held-out examples. Empty for none."""


class Checkpointer(Actor):
    """Finalizes checkpoints.

    Written under a temporary name, synced and renamed, so that no incomplete one has a final name.
    The manifest has the digest of every file, and the event the digest of the manifest. `retention` has the checkpoints
    with their cursors. `best` links to the best one, and `best.json` has its metric; each is replaced atomically.
    """

    state_type = CheckpointRetention

    def __init__(
        self,
        config: CheckpointConfig,
        *,
        folder: Path,
        steps: int,
        evaluated_every: int = 0,
        synced: Sequence[Path] = (),
    ) -> None:
        """Configure the checkpointer.

        Args:
            config: the recipe's `[checkpoint]`.
            folder: folder of the checkpoints.
            steps: steps of the run.
            evaluated_every: steps between evaluations; 0 if only the last step is evaluated.
            synced: folders that resuming needs, the log above all; they are synced before a checkpoint is finalized.
        """
        self.config = config
        self.folder = folder
        self.steps = steps
        self.evaluated_every = evaluated_every
        self.synced = tuple(synced)
        self.began = psutil.Process().create_time()
        """Start of this process in seconds since the epoch; a checkpoint that was being written before it is never
        finished."""
        self.retention = CheckpointRetention(
            keep_last=config.keep_last, keep_best=bool(config.keep_best), lowest=config.keep_best == "loss"
        )

    def snapshot(self) -> CheckpointRetention:
        """Returns the retention state."""
        return self.retention

    def restore(self, state: CheckpointRetention) -> None:
        """Restore checkpoints and ratings; the limits are those of the current recipe."""
        self.retention = msgspec.structs.replace(self.retention, checkpoints=state.checkpoints, ratings=state.ratings)

    @on
    def step_completed(self, event: StepCompleted) -> Iterator[SaveCheckpoint]:
        every = self.config.every_steps
        evaluated = bool(self.config.keep_best) and self._due(event.step) == event.step
        if event.step == self.steps or (every and event.step % every == 0) or evaluated:
            yield SaveCheckpoint(folder=f"{CHECKPOINTS}/{_WRITING}step-{event.step}", reason="schedule")

    @on
    def run_stopping(self, event: RunStopping, context: Context) -> Iterator[SaveCheckpoint]:
        yield SaveCheckpoint(folder=f"{CHECKPOINTS}/{_WRITING}stop-{context.sequence}", reason=event.reason)

    @on
    async def checkpoint_staged(
        self, event: CheckpointStaged, context: Context
    ) -> Emits[CheckpointCommitted | BestCheckpointChosen]:
        asked = _scheduled_step(event.folder)
        manifest = "" if context.replayed else await self._finalize(event)
        due = asked if asked is not None and self._due(asked) == asked else -1
        chosen = [
            best
            async for best in self._after(
                self.retention.record_saved(Saved(step=event.step, due=due, cursor=event.cursor)), context
            )
        ]
        for best in chosen:
            yield best  # before the final event of a run
        kept = tuple(saved.step for saved in self.retention.recoverable())
        yield CheckpointCommitted(
            folder=_name(event.step), step=event.step, cursor=event.cursor, manifest=manifest, kept=kept
        )

    @on
    async def checkpoint_damaged(self, event: CheckpointDamaged, context: Context) -> Emits[BestCheckpointChosen]:
        async for best in self._after(self.retention.without(event.step), context):
            yield best

    @on
    async def run_resumed(self, event: RunResumed, context: Context) -> Emits[BestCheckpointChosen]:
        """Remove what was never finished, and checkpoints, set aside, that are later than the one rolled back to."""
        if not context.replayed:
            await asyncio.to_thread(_remove_unfinished, self.folder, before=self.began)
        for step in sorted(self.retention.steps()):
            if 0 <= event.from_step < step:
                async for best in self._after(self.retention.without(step), context):
                    yield best

    @on
    async def evaluation_completed(self, event: EvaluationCompleted, context: Context) -> Emits[BestCheckpointChosen]:
        if event.mode == self.config.keep_best and event.weight_version > 0 and event.failed < event.tasks:
            rating = Rating(weight_version=event.weight_version, value=event.common_reward_mean)
            async for best in self._after(
                self.retention.record_rating(self._due(event.weight_version), rating), context
            ):
                yield best

    @on
    async def loss_evaluated(self, event: LossEvaluated, context: Context) -> Emits[BestCheckpointChosen]:
        if self.config.keep_best == "loss" and event.weight_version > 0:
            rating = Rating(weight_version=event.weight_version, value=event.metrics["loss"])
            async for best in self._after(
                self.retention.record_rating(self._due(event.weight_version), rating), context
            ):
                yield best

    async def _finalize(self, event: CheckpointStaged) -> str:
        """Finalize what the trainer wrote, after the log is synced; returns the digest of the manifest."""
        try:
            for needed in self.synced:
                await asyncio.to_thread(sync_store, needed)
            return await asyncio.to_thread(
                _make_final, self.folder / Path(event.folder).name, self._final(event.step), event.step, event.cursor
            )
        except OSError as error:
            what = f"cannot finalize the checkpoint of step {event.step} in {self.folder}"
            if refused := storage_error(what, error, self.folder, self.folder.parent):
                raise refused from error
            raise

    def _due(self, version: int) -> int:
        """Step at which the evaluation of this version was due."""
        if version >= self.steps:
            return self.steps
        return version - version % self.evaluated_every if self.evaluated_every else 0

    async def _after(self, retention: CheckpointRetention, context: Context) -> AsyncIterator[BestCheckpointChosen]:
        """Update the folder to the new retention; yields the best checkpoint if it changed."""
        before, self.retention = self.retention, retention
        best = retention.best() if self.config.keep_best else None
        chosen = None
        if best and best != before.best():
            step, rating = best[0].step, best[1]
            chosen = BestCheckpointChosen(
                folder=_name(step),
                step=step,
                weight_version=rating.weight_version,
                metric=self.config.keep_best,
                value=rating.value,
            )
        if not context.replayed:
            if chosen:
                await asyncio.to_thread(_point_to, self.folder, chosen)
            elif before.best() and not best and self.config.keep_best:
                await asyncio.to_thread(_point_nowhere, self.folder)
            for step in before.steps() - retention.steps():
                await asyncio.to_thread(shutil.rmtree, self._final(step), ignore_errors=True)
        if chosen:
            yield chosen

    def _final(self, step: int) -> Path:
        return self.folder / Path(_name(step)).name


def _name(step: int) -> str:
    """Folder of a checkpoint relative to the run's, as in events."""
    return f"{CHECKPOINTS}/step-{step}"


def _scheduled_step(folder: str) -> int | None:
    """Step of a scheduled checkpoint from its temporary name; None for others."""
    step = Path(folder).name.removeprefix(f"{_WRITING}step-")
    return int(step) if step.isdecimal() else None


def _remove_unfinished(folder: Path, *, before: float) -> None:
    """Remove folders of checkpoints whose writing was interrupted: those in which nothing was written since this time.

    A checkpoint that was written whole is finalized before, since its event is older than that of the resumption.
    """
    for unfinished in folder.glob(f"{_WRITING}*"):
        written = [path.stat().st_mtime for path in (unfinished, *unfinished.rglob("*"))]
        if max(written) < before:
            shutil.rmtree(unfinished, ignore_errors=True)


def _make_final(written: Path, final: Path, step: int, cursor: int) -> str:
    """Sync a checkpoint, write its manifest and rename it to its final name; returns the manifest's digest."""
    if written.exists():
        (written / "cursor").write_text(f"{cursor}\n")
        write_manifest(written, step=step, cursor=cursor)
        sync(written)
        if final.exists():
            shutil.rmtree(final)
        written.rename(final)
        sync(final.parent)
    return digest_of_manifest(final)


def _point_to(folder: Path, chosen: BestCheckpointChosen) -> None:
    atomic_write(folder / f"{BEST}.json", msgspec.json.format(msgspec.json.encode(chosen), indent=2))
    temporary = folder / f"{_WRITING}{BEST}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(Path(chosen.folder).name)
    temporary.replace(folder / BEST)
    sync(folder)


def _point_nowhere(folder: Path) -> None:
    for name in (BEST, f"{BEST}.json"):
        (folder / name).unlink(missing_ok=True)
