"""The trainer: takes an optimizer step for each batch, in order, and publishes the weights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from areal_actors.actor import Actor, Emits, Turn, on
from areal_actors.credit import Credit
from areal_actors.engines.base import TrainingEngine
from areal_actors.example_rows import checksum, example_metrics
from areal_actors.messages import (
    BatchFormed,
    CheckpointWritten,
    ExamplesDrawn,
    LossEvaluated,
    RunStarted,
    SaveCheckpoint,
    StepCompleted,
    Throughput,
    TrainerPhase,
    TrajectoryExported,
    WeightsPublished,
)
from areal_actors.rows import EPISODE, rows_of
from areal_actors.step_metrics import batch_metrics, rows_checksum
from areal_actors.values import Row
from bus.errors import LogUnavailable

Progress = Callable[[str, int, int, dict[str, float]], None]
"""(phase, done, total, metrics): how far a long preparation is."""


class Preparation(Protocol):
    """Makes or finds the model, and the engine that trains it; slow, runs in a thread."""

    def __call__(self, progress: Progress) -> TrainingEngine:
        """Prepare; raises SetupError when the model cannot be had."""
        ...


class Lessons(Protocol):
    """What is learned in a run that has no episodes: examples as rows."""

    def begin(self, model_folder: str) -> None:
        """Write rows for the model in this Hugging Face folder; raises SetupError when it has no tokenizer."""
        ...

    def rows(self, numbers: Sequence[int]) -> list[Row]:
        """The rows of the examples with these numbers; raises SetupError when one of them cannot be written."""
        ...

    def held_out(self, weight_version: int) -> list[Row]:
        """The rows that this version is measured on; empty when it is not."""
        ...


class Trainer(Actor):
    """`BatchFormed` is the truth of what a step trains; its trajectories are read from the log by their positions.

    With `lessons` it is `ExamplesDrawn`: no episodes are run, nobody loads the weights, and only the first are published.
    """

    def __init__(
        self,
        prepare: Preparation,
        weights_folder: Callable[[int], str],
        clock: Callable[[], float],
        credit: Credit = EPISODE,
        lessons: Lessons | None = None,
    ) -> None:
        self.prepare = prepare
        self.credit = credit
        self.lessons = lessons
        self.weights_folder = weights_folder
        self.clock = clock
        self.engine: TrainingEngine | None = None
        self.cursor = 0
        self.groups_trained = 0

    @on
    async def run_started(self, _: RunStarted) -> Emits[TrainerPhase | WeightsPublished | LossEvaluated]:
        async for phase in self._prepared():
            yield phase
        yield (published := await self._published())
        if self.lessons is not None:
            await asyncio.to_thread(self.lessons.begin, published.location.model)
            async for measured in self._measured(self.lessons):
                yield measured

    @on
    async def batch_formed(self, event: BatchFormed, turn: Turn) -> Emits[Throughput | StepCompleted | WeightsPublished]:
        engine = self._ready()
        if event.step != engine.weight_version:
            return
        rows = await self._rows(event, turn)
        started = self.clock()
        metrics = await asyncio.to_thread(engine.step, rows)
        self.cursor = turn.sequence
        self.groups_trained += len(event.groups)
        tokens = sum(len(row.token_ids) for row in rows)
        yield Throughput(actor="trainer", side="training", tokens=tokens, started=started, seconds=self.clock() - started)
        metrics = {**metrics, **batch_metrics(rows, event)}
        yield StepCompleted(step=engine.weight_version, metrics=metrics, rows_checksum=rows_checksum(rows))
        yield await self._published()

    @on
    async def examples_drawn(self, event: ExamplesDrawn, turn: Turn) -> Emits[Throughput | StepCompleted | LossEvaluated]:
        engine, lessons = self._ready(), self.lessons
        if lessons is None or event.step != engine.weight_version:
            return
        rows = await asyncio.to_thread(lessons.rows, event.numbers)
        started = self.clock()
        metrics = await asyncio.to_thread(engine.step, rows)
        self.cursor = turn.sequence
        self.groups_trained += len(event.numbers)
        tokens = sum(len(row.token_ids) for row in rows)
        yield Throughput(actor="trainer", side="training", tokens=tokens, started=started, seconds=self.clock() - started)
        yield StepCompleted(step=engine.weight_version, metrics=example_metrics(metrics, rows), rows_checksum=checksum(rows))
        async for measured in self._measured(lessons):
            yield measured

    @on
    async def save_checkpoint(self, work: SaveCheckpoint) -> Emits[CheckpointWritten]:
        engine = self._ready()
        await asyncio.to_thread(engine.save, work.folder)
        yield CheckpointWritten(folder=work.folder, step=engine.weight_version, cursor=self.cursor)

    async def _rows(self, event: BatchFormed, turn: Turn) -> list[Row]:
        members = [(index, member) for index, group in enumerate(event.groups) for member in group]
        envelopes = await turn.read([member.sequence for _, member in members])
        rows: list[Row] = []
        for (index, member), envelope in zip(members, envelopes, strict=True):
            trajectory = envelope.open(TrajectoryExported).trajectory
            if trajectory.episode != member.episode:
                raise LogUnavailable(f"position {member.sequence} of the log holds episode {trajectory.episode}, not {member.episode}")
            rows += rows_of(trajectory, index, event.oldest_version, self.credit)
        return rows

    async def _measured(self, lessons: Lessons) -> AsyncIterator[LossEvaluated]:
        """The present weights on held-out examples, when they are due for it."""
        engine = self._ready()
        if rows := await asyncio.to_thread(lessons.held_out, engine.weight_version):
            metrics = example_metrics(await asyncio.to_thread(engine.evaluate, rows), rows)
            examples = int(metrics.pop("examples"))
            yield LossEvaluated(weight_version=engine.weight_version, examples=examples, metrics=metrics)

    async def _published(self) -> WeightsPublished:
        engine = self._ready()
        version = engine.weight_version
        location = await asyncio.to_thread(engine.publish, self.weights_folder(version))
        return WeightsPublished(weight_version=version, location=location)

    async def _prepared(self) -> AsyncIterator[TrainerPhase]:
        """Prepare in a thread, and say how far it is."""
        loop = asyncio.get_running_loop()
        phases: asyncio.Queue[TrainerPhase | None] = asyncio.Queue()

        def progress(phase: str, done: int, total: int, metrics: dict[str, float]) -> None:
            loop.call_soon_threadsafe(phases.put_nowait, TrainerPhase(phase=phase, done=done, total=total, metrics=metrics))

        def over(_: object) -> None:
            phases.put_nowait(None)

        preparing = asyncio.create_task(asyncio.to_thread(self.prepare, progress))
        preparing.add_done_callback(over)
        while (phase := await phases.get()) is not None:
            yield phase
        self.engine = await preparing

    def _ready(self) -> TrainingEngine:
        if self.engine is None:
            raise RuntimeError("the trainer heard of a batch before the run started")
        return self.engine

    def status(self) -> dict[str, float | str]:
        """The version it trains."""
        return {"weight_version": self.engine.weight_version if self.engine else -1, "groups_trained": self.groups_trained}
