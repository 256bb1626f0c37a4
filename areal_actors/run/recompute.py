"""Computes every weight version of a run again from its log alone: the trainer's own code, fed with what the run's trainer was fed.

Started by `areal audit --recompute` as `python -m areal_actors.run.recompute LOG RUN_FOLDER STEPS`, for it loads torch. It prints a
line of JSON for each thing that it has come to.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, TextIO

import msgspec

from areal_actors.actors.trainer import Trainer
from areal_actors.conversations.credit import Credit
from areal_actors.engines.checkpoint_store import CHECKPOINTS, CheckpointStore
from areal_actors.errors import ArealError, SetupError
from areal_actors.messages import (
    BatchFormed,
    CheckpointSaved,
    ExamplesDrawn,
    RunResumed,
    RunStarted,
    StepCompleted,
    TrainerPhase,
    TrajectoryDropped,
    TrajectoryExported,
    WeightsPublished,
)
from areal_actors.recipe.recipe import Recipe
from areal_actors.run.process import Place
from areal_actors.run.tensor_process import Preparation, lessons_of
from areal_actors.run_folder import RunFolder
from areal_actors.steps.audit import KINDS_BY_SUBJECT, Computed
from bus.base import Envelope
from bus.errors import BusError, LogUnavailable
from bus.message import Message, Request
from bus.recorded import read_log


class LogTurn:
    """The handling of one event of the log; what the trainer reads, it reads from the log."""

    def __init__(self, envelope: Envelope, kept: dict[int, Envelope], *, replayed: bool = False) -> None:
        self.cause, self.now, self.sequence, self.replayed = envelope.id, envelope.time, envelope.sequence, replayed
        self.random = Random(envelope.id)
        self._kept = kept

    async def ask(self, request: Request[Any], *, timeout: float, to: str = "", retry_for_seconds: float = 0.0) -> Any:  # noqa: ARG002
        """The trainer asks no other actor."""
        raise LogUnavailable(f"{request.subject} was asked for, which no log answers")

    async def stream(self, request: Request[Any], *, timeout: float, to: str = "") -> AsyncGenerator[Any, None]:
        """The trainer asks no other actor."""
        yield await self.ask(request, timeout=timeout, to=to)

    async def read(self, sequences: Sequence[int]) -> list[Envelope]:
        """The events at these places."""
        if missing := [sequence for sequence in sequences if sequence not in self._kept]:
            raise LogUnavailable(f"event {missing[0]} of the log is not one that a step can be made of, or was trained before")
        return [self._kept[sequence] for sequence in sequences]

    @contextmanager
    def waiting(self, name: str, seconds: float) -> Iterator[None]:  # noqa: ARG002
        """There is no watchdog here."""
        yield


class Recomputation:
    """A trainer that lives through the log of a run once more, up to the last step that the run has completed."""

    def __init__(self, log: Path, folder: RunFolder, steps: int, scratch: Path) -> None:
        self.log, self.folder, self.steps, self.scratch = log, folder, steps, scratch
        self.checkpoints = CheckpointStore(scratch)
        self.kept: dict[int, Envelope] = {}
        """What the trainer may read again, by its place: trajectories, and what was formed of them."""
        self.places: dict[str, list[int]] = {}
        """Of each episode's trajectories."""
        self.changes = dict(self._changes())
        """Where a resumed run goes on with other settings of its trainer, and the step of the checkpoint that it does so from."""
        self.trainer: Trainer | None = None

    def _changes(self) -> Iterator[tuple[int, int]]:
        saved = 0
        trainer: dict[str, Any] = {}
        for envelope in read_log(self.log):
            if envelope.subject == CheckpointSaved.subject:
                saved = envelope.open(CheckpointSaved).step
            elif envelope.subject in (RunStarted.subject, RunResumed.subject):
                before, trainer = trainer, msgspec.msgpack.decode(envelope.body)["recipe"]["trainer"]
                if before and before != trainer:
                    yield envelope.sequence, saved

    async def results(self) -> AsyncGenerator[Computed, None]:
        """Everything that the trainer comes to, in order."""
        for envelope in read_log(self.log):
            kind = KINDS_BY_SUBJECT.get(envelope.subject)
            if kind is TrajectoryExported:
                self.kept[envelope.sequence] = envelope
                self.places.setdefault(envelope.open(TrajectoryExported).trajectory.episode, []).append(envelope.sequence)
            elif kind is TrajectoryDropped:
                self._forget({envelope.open(TrajectoryDropped).episode})
            elif kind is not None and kind in (RunStarted, RunResumed, BatchFormed, ExamplesDrawn):
                async for computed in self._event(envelope, envelope.open(kind)):
                    yield computed
                if self.trainer is not None and self.trainer.weight_version >= self.steps:
                    return

    async def _event(self, envelope: Envelope, message: Message) -> AsyncGenerator[Computed, None]:
        if isinstance(message, RunStarted):
            self.trainer = self._trainer(message.recipe)
        elif isinstance(message, RunResumed):
            if (saved := self.changes.get(envelope.sequence)) is None:
                return
            async for phase in self._changed(message, saved, envelope.sequence):
                yield phase
        else:
            self.kept[envelope.sequence] = envelope
        if self.trainer is None:
            raise SetupError("the log does not begin with the start of its run, and weights can be computed again only from there")
        async for emitted in self.trainer.receive(message, LogTurn(envelope, self.kept)):
            if (result := _computed(emitted)) is not None:
                yield result
        if isinstance(message, BatchFormed | ExamplesDrawn):
            self._stepped(message, envelope.sequence)

    async def _changed(self, resumed: RunResumed, saved: int, place: int) -> AsyncGenerator[Computed, None]:
        """A trainer of other settings takes the place of the one before; like one that is restarted, it replays the events so far."""
        self.trainer = self._trainer(resumed.recipe)
        for envelope in read_log(self.log):
            kind = KINDS_BY_SUBJECT.get(envelope.subject)
            if envelope.sequence >= place:
                return
            if kind is None or kind not in self.trainer.handlers:
                continue
            message = envelope.open(kind)
            if isinstance(message, CheckpointSaved):
                if message.step != saved:
                    continue
                message = CheckpointSaved(folder=f"{CHECKPOINTS}/step-{saved}", step=saved, cursor=message.cursor)
            async for emitted in self.trainer.receive(message, LogTurn(envelope, self.kept, replayed=True)):
                if isinstance(emitted, TrainerPhase):
                    yield Computed(phase=emitted.phase)

    def _trainer(self, recipe: dict[str, Any]) -> Trainer:
        decoded = msgspec.convert(recipe, Recipe)
        lessons = lessons_of(decoded) if decoded.learns_from_examples() else None
        preparation = Preparation(Place(recipe=decoded, folder=self.folder, instance="trainer-0"))
        most = decoded.trainer.max_skipped_steps
        return Trainer(
            preparation, self._weights_folder, float, Credit.of(decoded.task), lessons, max_skipped_steps=most, checkpoints=self.checkpoints
        )

    def _weights_folder(self, version: int) -> str:
        """Only the checksum is wanted: one version lies there at a time."""
        for earlier in self.scratch.glob("v*"):
            shutil.rmtree(earlier, ignore_errors=True)
        return str(self.scratch / f"v{version}")

    def _stepped(self, event: BatchFormed | ExamplesDrawn, place: int) -> None:
        """Save what a change of settings goes on from, and let go of what is not needed any more."""
        assert self.trainer is not None
        assert self.trainer.engine is not None
        if self.trainer.weight_version in self.changes.values():
            self.checkpoints.write(self.trainer.engine.save, f"{CHECKPOINTS}/step-{self.trainer.weight_version}")
        if not self.changes:
            self.kept.pop(place)
            if isinstance(event, BatchFormed):
                self._forget({member.episode for group in event.groups for member in group})

    def _forget(self, episodes: set[str]) -> None:
        for place in (place for episode in episodes for place in self.places.pop(episode, [])):
            del self.kept[place]


def _computed(emitted: Message) -> Computed | None:
    match emitted:
        case TrainerPhase():
            return Computed(phase=f"{emitted.phase} {emitted.done}/{emitted.total}" if emitted.total else emitted.phase)
        case WeightsPublished():
            return Computed(version=emitted.weight_version, checksum=emitted.location.checksum)
        case StepCompleted():
            return Computed(step=emitted.step, rows_checksum=emitted.rows_checksum, metrics=emitted.metrics)
    return None


async def _written(recomputation: Recomputation, results: TextIO) -> None:
    try:
        async for computed in recomputation.results():
            _write(results, computed)
    except (ArealError, BusError, msgspec.MsgspecError) as error:
        _write(results, Computed(error=f"{type(error).__name__}: {error}"))


def _write(results: TextIO, computed: Computed) -> None:
    results.write(msgspec.json.encode(computed).decode() + "\n")
    results.flush()


def main(log: Path, folder: Path, steps: int) -> None:
    """Compute again what the log has up to this step; a model that the run has made is taken from its folder, if that is there."""
    # What libraries print goes to standard error, so that every line of the output is one of ours.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="areal-audit-") as scratch:
        place = RunFolder(folder if folder.is_dir() else Path(scratch))
        asyncio.run(_written(Recomputation(log, place, steps, Path(scratch)), results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
