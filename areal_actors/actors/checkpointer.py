"""The checkpointer: says when to save, makes what the trainer wrote final, and knows which checkpoint is the best."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from areal_actors.actor import Actor, Emits, Turn, on
from areal_actors.config import Config, NonNegativeInt, PositiveInt
from areal_actors.durable_files import atomic_write, disk_full, is_disk_full
from areal_actors.engines.checkpoint_store import CHECKPOINTS
from areal_actors.engines.manifest import digest_of_manifest, write_manifest
from areal_actors.messages import (
    BestCheckpointChosen,
    CheckpointDamaged,
    CheckpointSaved,
    CheckpointWritten,
    EvaluationCompleted,
    LossEvaluated,
    RunResumed,
    RunStopping,
    SaveCheckpoint,
    StepCompleted,
)
from areal_actors.steps.checkpoint_retention import CheckpointRetention, Rating, Saved
from bus.durability import sync, sync_store

_WRITING = ".writing-"
BEST = "best"
"""Name of the link to the best checkpoint; what it was chosen for stands in `best.json`."""


class CheckpointConfig(Config):
    """`[checkpoint]`."""

    every_steps: NonNegativeInt = 20
    """0 saves at the end only: a trainer that dies then takes all its steps again."""
    keep_last: PositiveInt = 2
    """The newest so many are kept."""
    keep_best: Literal["", "greedy", "sampled", "loss"] = ""
    """Save one for every evaluation, too, and keep the best: by mean reward on held-out tasks answered so, or by the loss on
    held-out examples. Empty for none."""


class Checkpointer(Actor):
    """A checkpoint is written under a temporary name, synced and renamed: a half-written one is never under a final name.

    Its manifest has the digest of every file, and the event that of the manifest. `retention` knows which checkpoints there are, with
    their cursors. `best` links to the best one, and `best.json` says why; each is replaced in one step, and leads to a whole checkpoint.
    """

    state_type = CheckpointRetention

    def __init__(
        self, config: CheckpointConfig, *, folder: Path, steps: int, evaluated_every: int = 0, synced: Sequence[Path] = ()
    ) -> None:
        """`evaluated_every` so many steps there is an evaluation, beside that after the last; 0 for that alone.

        `synced` are folders without which nobody can go on from a checkpoint, the log's above all: they are on the disk before it counts.
        """
        self.config = config
        self.folder = folder
        self.steps = steps
        self.evaluated_every = evaluated_every
        self.synced = tuple(synced)
        self.retention = CheckpointRetention(
            keep_last=config.keep_last, keep_best=bool(config.keep_best), lowest=config.keep_best == "loss"
        )

    def snapshot(self) -> CheckpointRetention:
        """Which checkpoints there are, and what is known of them."""
        return self.retention

    def restore(self, state: CheckpointRetention) -> None:
        """Go on from there; how many are kept is what the recipe says now."""
        self.retention = msgspec.structs.replace(self.retention, checkpoints=state.checkpoints, ratings=state.ratings)

    @on
    async def step_completed(self, event: StepCompleted) -> Emits[SaveCheckpoint]:
        every = self.config.every_steps
        evaluated = bool(self.config.keep_best) and self._due(event.step) == event.step
        if event.step == self.steps or (every and event.step % every == 0) or evaluated:
            yield SaveCheckpoint(folder=f"{CHECKPOINTS}/{_WRITING}step-{event.step}", reason="schedule")

    @on
    async def run_stopping(self, event: RunStopping, turn: Turn) -> Emits[SaveCheckpoint]:
        yield SaveCheckpoint(folder=f"{CHECKPOINTS}/{_WRITING}stop-{turn.sequence}", reason=event.reason)

    @on
    async def checkpoint_written(self, event: CheckpointWritten, turn: Turn) -> Emits[CheckpointSaved | BestCheckpointChosen]:
        asked = _asked_for(event.folder)
        manifest = "" if turn.replayed else await self._finished(event)
        due = asked if asked is not None and self._due(asked) == asked else -1
        chosen = [best async for best in self._after(self.retention.saved(Saved(step=event.step, due=due, cursor=event.cursor)), turn)]
        for best in chosen:
            yield best  # before the event that a run ends with
        kept = tuple(saved.step for saved in self.retention.recoverable())
        yield CheckpointSaved(folder=_name(event.step), step=event.step, cursor=event.cursor, manifest=manifest, kept=kept)

    @on
    async def checkpoint_damaged(self, event: CheckpointDamaged, turn: Turn) -> Emits[BestCheckpointChosen]:
        async for best in self._after(self.retention.without(event.step), turn):
            yield best

    @on
    async def run_resumed(self, event: RunResumed, turn: Turn) -> Emits[BestCheckpointChosen]:
        """Later checkpoints than the one that is gone back to were set aside."""
        for step in sorted(self.retention.steps()):
            if 0 <= event.from_step < step:
                async for best in self._after(self.retention.without(step), turn):
                    yield best

    @on
    async def evaluation_completed(self, event: EvaluationCompleted, turn: Turn) -> Emits[BestCheckpointChosen]:
        if event.mode == self.config.keep_best and event.weight_version > 0 and event.failed < event.tasks:
            rating = Rating(weight_version=event.weight_version, value=event.common_reward_mean)
            async for best in self._after(self.retention.rated(self._due(event.weight_version), rating), turn):
                yield best

    @on
    async def loss_evaluated(self, event: LossEvaluated, turn: Turn) -> Emits[BestCheckpointChosen]:
        if self.config.keep_best == "loss" and event.weight_version > 0:
            rating = Rating(weight_version=event.weight_version, value=event.metrics["loss"])
            async for best in self._after(self.retention.rated(self._due(event.weight_version), rating), turn):
                yield best

    async def _finished(self, event: CheckpointWritten) -> str:
        """Make final what the trainer wrote, once the log before it is on the disk; returns the digest of its manifest."""
        try:
            for needed in self.synced:
                await asyncio.to_thread(sync_store, needed)
            return await asyncio.to_thread(
                _make_final, self.folder / Path(event.folder).name, self._final(event.step), event.step, event.cursor
            )
        except OSError as error:
            if is_disk_full(error, self.folder):
                raise disk_full(f"the checkpoint of step {event.step} cannot be completed in {self.folder}", self.folder.parent) from error
            raise

    def _due(self, version: int) -> int:
        """The step at which the evaluation of this version fell due."""
        if version >= self.steps:
            return self.steps
        return version - version % self.evaluated_every if self.evaluated_every else 0

    async def _after(self, retention: CheckpointRetention, turn: Turn) -> AsyncIterator[BestCheckpointChosen]:
        """Make the folder what the retention is now; says which is the best, if that has changed."""
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
        if not turn.replayed:
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
    """The folder of a checkpoint as events have it: relative to the run's."""
    return f"{CHECKPOINTS}/step-{step}"


def _asked_for(folder: str) -> int | None:
    """The step at which a checkpoint was asked for by schedule, from the temporary name that it was given."""
    step = Path(folder).name.removeprefix(f"{_WRITING}step-")
    return int(step) if step.isdecimal() else None


def _make_final(written: Path, final: Path, step: int, cursor: int) -> str:
    """Put a checkpoint on disk, with its manifest, under its final name; returns the manifest's digest."""
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
