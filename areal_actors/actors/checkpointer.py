"""The checkpointer: says when to save, makes what the trainer wrote final, and knows which checkpoint is the best."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Literal

import msgspec

from areal_actors.actor import Actor, Emits, Turn, on
from areal_actors.config import Config, NonNegativeInt, PositiveInt
from areal_actors.messages import (
    BestCheckpointChosen,
    CheckpointSaved,
    CheckpointWritten,
    EvaluationCompleted,
    LossEvaluated,
    RunStopping,
    SaveCheckpoint,
    StepCompleted,
)
from areal_actors.steps.checkpoint_shelf import Rating, Saved, Shelf

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

    `best` links to the best one, and `best.json` says why; each is replaced in one step, and leads to a whole checkpoint.
    """

    def __init__(self, config: CheckpointConfig, *, folder: Path, steps: int, evaluated_every: int = 0) -> None:
        """`evaluated_every` so many steps there is an evaluation, beside that after the last; 0 for that alone."""
        self.config = config
        self.folder = folder
        self.steps = steps
        self.evaluated_every = evaluated_every
        self.shelf = Shelf(keep_last=config.keep_last, keep_best=bool(config.keep_best), lowest=config.keep_best == "loss")

    @on
    async def step_completed(self, event: StepCompleted) -> Emits[SaveCheckpoint]:
        every = self.config.every_steps
        evaluated = bool(self.config.keep_best) and self._due(event.step) == event.step
        if event.step == self.steps or (every and event.step % every == 0) or evaluated:
            yield SaveCheckpoint(folder=str(self.folder / f"{_WRITING}step-{event.step}"), reason="schedule")

    @on
    async def run_stopping(self, event: RunStopping, turn: Turn) -> Emits[SaveCheckpoint]:
        yield SaveCheckpoint(folder=str(self.folder / f"{_WRITING}stop-{turn.sequence}"), reason=event.reason)

    @on
    async def checkpoint_written(self, event: CheckpointWritten, turn: Turn) -> Emits[CheckpointSaved | BestCheckpointChosen]:
        final, asked = self._final(event.step), _asked_for(Path(event.folder))
        if not turn.replayed:
            await asyncio.to_thread(_make_final, Path(event.folder), final, event.cursor)
        due = asked if asked is not None and self._due(asked) == asked else -1
        chosen = [best async for best in self._after(self.shelf.saved(Saved(step=event.step, due=due)), turn)]
        for best in chosen:
            yield best  # before the event that a run ends with
        yield CheckpointSaved(folder=str(final), step=event.step, cursor=event.cursor)

    @on
    async def evaluation_completed(self, event: EvaluationCompleted, turn: Turn) -> Emits[BestCheckpointChosen]:
        if event.mode == self.config.keep_best and event.weight_version > 0 and event.failed < event.tasks:
            rating = Rating(weight_version=event.weight_version, value=event.common_reward_mean)
            async for best in self._after(self.shelf.rated(self._due(event.weight_version), rating), turn):
                yield best

    @on
    async def loss_evaluated(self, event: LossEvaluated, turn: Turn) -> Emits[BestCheckpointChosen]:
        if self.config.keep_best == "loss" and event.weight_version > 0:
            rating = Rating(weight_version=event.weight_version, value=event.metrics["loss"])
            async for best in self._after(self.shelf.rated(self._due(event.weight_version), rating), turn):
                yield best

    def _due(self, version: int) -> int:
        """The step at which the evaluation of this version fell due."""
        if version >= self.steps:
            return self.steps
        return version - version % self.evaluated_every if self.evaluated_every else 0

    async def _after(self, shelf: Shelf, turn: Turn) -> AsyncIterator[BestCheckpointChosen]:
        """Make the folder what the shelf is now; says which is the best, if that has changed."""
        before, self.shelf = self.shelf, shelf
        best = shelf.best() if self.config.keep_best else None
        chosen = None
        if best and best != before.best():
            step, rating = best[0].step, best[1]
            chosen = BestCheckpointChosen(
                folder=str(self._final(step)),
                step=step,
                weight_version=rating.weight_version,
                metric=self.config.keep_best,
                value=rating.value,
            )
        if not turn.replayed:
            if chosen:
                await asyncio.to_thread(_point_to, self.folder, chosen)
            for step in before.steps() - shelf.steps():
                await asyncio.to_thread(shutil.rmtree, self._final(step), ignore_errors=True)
        if chosen:
            yield chosen

    def _final(self, step: int) -> Path:
        return self.folder / f"step-{step}"


_WRITING = ".writing-"


def _asked_for(folder: Path) -> int | None:
    """The step at which a checkpoint was asked for by schedule, from the temporary name that it was given."""
    step = folder.name.removeprefix(f"{_WRITING}step-")
    return int(step) if step.isdecimal() else None


def _make_final(written: Path, final: Path, cursor: int) -> None:
    if not written.exists():
        return
    (written / "cursor").write_text(f"{cursor}\n")
    for path in sorted(written.rglob("*")):
        _sync(path)
    _sync(written)
    if final.exists():
        shutil.rmtree(final)
    written.rename(final)
    _sync(final.parent)


def _point_to(folder: Path, chosen: BestCheckpointChosen) -> None:
    reasons = msgspec.json.format(msgspec.json.encode(chosen), indent=2)
    _put(folder / f"{BEST}.json", lambda path: path.write_bytes(reasons))
    _put(folder / BEST, lambda path: path.symlink_to(Path(chosen.folder).name))


def _put(path: Path, make: Callable[[Path], object]) -> None:
    """Make something under a temporary name and let it take this one in a single step."""
    temporary = path.with_name(f"{_WRITING}{path.name}")
    temporary.unlink(missing_ok=True)
    make(temporary)
    temporary.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
