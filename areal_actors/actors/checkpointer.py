"""The checkpointer: says when to save, and makes what the trainer wrote final."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

from areal_actors.actor import Actor, Emits, Turn, on
from areal_actors.config import Config, NonNegativeInt, PositiveInt
from areal_actors.messages import CheckpointSaved, CheckpointWritten, RunStopping, SaveCheckpoint, StepCompleted


class CheckpointConfig(Config):
    """`[checkpoint]`."""

    every_steps: NonNegativeInt = 0
    """0 saves at the end only."""
    keep: PositiveInt = 2
    """The newest so many are kept."""


class Checkpointer(Actor):
    """A checkpoint is written under a temporary name, synced and renamed: a half-written one is never under a final name."""

    def __init__(self, config: CheckpointConfig, *, folder: Path, steps: int) -> None:
        self.config = config
        self.folder = folder
        self.steps = steps
        self.saved: list[Path] = []

    @on
    async def step_completed(self, event: StepCompleted) -> Emits[SaveCheckpoint]:
        every = self.config.every_steps
        if event.step == self.steps or (every and event.step % every == 0):
            yield SaveCheckpoint(folder=self._temporary(f"step-{event.step}"), reason="schedule")

    @on
    async def run_stopping(self, event: RunStopping, turn: Turn) -> Emits[SaveCheckpoint]:
        yield SaveCheckpoint(folder=self._temporary(f"stop-{turn.sequence}"), reason=event.reason)

    @on
    async def checkpoint_written(self, event: CheckpointWritten, turn: Turn) -> Emits[CheckpointSaved]:
        final = self.folder / f"step-{event.step}"
        if not turn.replayed:
            await asyncio.to_thread(_make_final, Path(event.folder), final, event.cursor)
        if final not in self.saved:
            self.saved.append(final)
        for old in self.saved[: -self.config.keep]:
            await asyncio.to_thread(shutil.rmtree, old, ignore_errors=True)
        self.saved = self.saved[-self.config.keep :]
        yield CheckpointSaved(folder=str(final), step=event.step, cursor=event.cursor)

    def _temporary(self, name: str) -> str:
        return str(self.folder / f".writing-{name}")


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


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
