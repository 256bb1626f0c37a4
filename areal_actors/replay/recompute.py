"""Recomputes every weight version of a run from its log alone, with the trainer's own code and the same inputs.

Started by `areal-actors audit --recompute`, since it loads torch, while the log is still exported and
audited. It reads one order from standard input, and prints one line of JSON per result.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any, TextIO

import msgspec

from areal_actors.audit.audit import KINDS_BY_SUBJECT
from areal_actors.audit.recomputation import RecomputeOrder, RecomputeProgress
from areal_actors.core.errors import ArealError, SetupError
from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import (
    BatchFormed,
    CheckpointCommitted,
    ExamplesDrawn,
    RunResumed,
    RunStarted,
    TrainerProgress,
    TrajectoryDropped,
    TrajectoryExported,
)
from areal_actors.replay.recompute_stretches import repeat_stretches
from areal_actors.replay.repeated_trainer import make_trainer, newest_folder, progress_of, step_settings
from areal_actors.runtime.log_context import LogContext
from areal_actors.training.checkpoint_store import CHECKPOINTS, CheckpointStore
from areal_actors.training.trainer import Trainer
from areal_bus.base import Envelope
from areal_bus.errors import BusError
from areal_bus.message import Message
from areal_bus.recorded import read_log


class Recomputation:
    """A trainer that replays the log of a run, up to the last step that the run completed."""

    def __init__(self, log: Path, folder: RunFolder, steps: int, scratch: Path) -> None:
        self.log, self.folder, self.steps, self.scratch = log, folder, steps, scratch
        self.checkpoints = CheckpointStore(scratch)
        self.kept: dict[int, Envelope] = {}
        """Events that the trainer may read again, by sequence: trajectories and batches."""
        self.trajectory_sequences: dict[str, list[int]] = {}
        """Sequences of each episode's trajectories."""
        self.changes = dict(self._changes())
        """Step of the checkpoint from which a resumed run continues with changed settings of its steps, by sequence of
        the resume."""
        self.trainer: Trainer | None = None

    def _changes(self) -> Iterator[tuple[int, int]]:
        saved = 0
        settings: tuple[Any, ...] = ()
        for envelope in read_log(self.log):
            if envelope.subject == CheckpointCommitted.subject:
                saved = envelope.open(CheckpointCommitted).step
            elif envelope.subject in (RunStarted.subject, RunResumed.subject):
                before, settings = settings, step_settings(msgspec.msgpack.decode(envelope.body)["recipe"])
                if before and before != settings:
                    yield envelope.sequence, saved

    async def results(self) -> AsyncGenerator[RecomputeProgress, None]:
        """Yields all results of the trainer, in order."""
        for envelope in read_log(self.log):
            kind = KINDS_BY_SUBJECT.get(envelope.subject)
            if kind is TrajectoryExported:
                self.kept[envelope.sequence] = envelope
                self.trajectory_sequences.setdefault(envelope.open(TrajectoryExported).trajectory.episode, []).append(
                    envelope.sequence
                )
            elif kind is TrajectoryDropped:
                self._forget({envelope.open(TrajectoryDropped).episode})
            elif kind is not None and kind in (RunStarted, RunResumed, BatchFormed, ExamplesDrawn):
                async for computed in self._event(envelope, envelope.open(kind)):
                    yield computed
                if self.trainer is not None and self.trainer.weight_version >= self.steps:
                    return

    async def _event(self, envelope: Envelope, message: Message) -> AsyncGenerator[RecomputeProgress, None]:
        if isinstance(message, RunStarted):
            self.trainer = self._trainer(message.recipe)
        elif isinstance(message, RunResumed):
            if (saved := self.changes.get(envelope.sequence)) is None:
                return
            async for phase in self._replace_trainer(message, saved, envelope.sequence):
                yield phase
        else:
            self.kept[envelope.sequence] = envelope
        if self.trainer is None:
            raise SetupError(
                "the log does not begin with the start of its run; weights can be recomputed only from the start"
            )
        async for emitted in self.trainer.receive(message, LogContext(envelope, self.kept)):
            if (result := progress_of(emitted)) is not None:
                yield result
        if isinstance(message, BatchFormed | ExamplesDrawn):
            self._finish_step(message, envelope.sequence)

    async def _replace_trainer(
        self, resumed: RunResumed, saved: int, end: int
    ) -> AsyncGenerator[RecomputeProgress, None]:
        """Replace the trainer by one with the changed settings, and replay the events so far as after a restart."""
        self.trainer = self._trainer(resumed.recipe)
        for envelope in read_log(self.log):
            kind = KINDS_BY_SUBJECT.get(envelope.subject)
            if envelope.sequence >= end:
                return
            if kind is None or kind not in self.trainer.handlers:
                continue
            message = envelope.open(kind)
            if isinstance(message, CheckpointCommitted):
                if message.step != saved:
                    continue
                message = CheckpointCommitted(folder=f"{CHECKPOINTS}/step-{saved}", step=saved, cursor=message.cursor)
            async for emitted in self.trainer.receive(message, LogContext(envelope, self.kept, replayed=True)):
                if isinstance(emitted, TrainerProgress):
                    yield RecomputeProgress(phase=emitted.phase)

    def _trainer(self, recipe: dict[str, Any]) -> Trainer:
        return make_trainer(recipe, self.folder, self.checkpoints, self._weights_folder)

    def _weights_folder(self, version: int) -> str:
        return newest_folder(self.scratch, version)

    def _finish_step(self, event: BatchFormed | ExamplesDrawn, sequence: int) -> None:
        """Save the checkpoints that a settings change continues from, and drop events that are no longer needed."""
        assert self.trainer is not None
        assert self.trainer.engine is not None
        if self.trainer.weight_version in self.changes.values():
            self.checkpoints.write(self.trainer.engine.save, f"{CHECKPOINTS}/step-{self.trainer.weight_version}")
        if not self.changes:
            self.kept.pop(sequence)
            if isinstance(event, BatchFormed):
                self._forget({member.episode for group in event.groups for member in group})

    def _forget(self, episodes: set[str]) -> None:
        for sequence in (sequence for episode in episodes for sequence in self.trajectory_sequences.pop(episode, [])):
            del self.kept[sequence]


async def _write_results(repeated: AsyncGenerator[RecomputeProgress, None], results: TextIO) -> None:
    try:
        async for computed in repeated:
            print(msgspec.json.encode(computed).decode(), file=results, flush=True)
    except (ArealError, BusError, msgspec.MsgspecError) as error:
        failed = RecomputeProgress(error=f"{type(error).__name__}: {error}")
        print(msgspec.json.encode(failed).decode(), file=results, flush=True)


def _repeat(order: RecomputeOrder, folder: RunFolder, scratch: Path) -> AsyncGenerator[RecomputeProgress, None]:
    if order.stretches:
        return repeat_stretches(Path(order.log), folder, order.stretches, scratch)
    return Recomputation(Path(order.log), folder, order.steps, scratch).results()


def main(_: list[str]) -> None:
    """Recompute the log of the order up to its step.

    A model made by the run is read from its folder, if that exists.
    """
    # Output of libraries goes to standard error, so that standard output has only results.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if not (line := sys.stdin.readline()):
        return  # the audit needs no trainer, or has ended
    order = msgspec.json.decode(line, type=RecomputeOrder)
    with tempfile.TemporaryDirectory(prefix="areal-audit-") as scratch:
        run_folder = RunFolder(Path(order.place) if Path(order.place).is_dir() else Path(scratch))
        asyncio.run(_write_results(_repeat(order, run_folder, Path(scratch)), results))
    os._exit(0)  # the interpreter's end with torch takes a quarter of a second
