"""The trainer: takes an optimizer step for each batch, in order, and publishes the weights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from areal_actors.actor import Actor, Emits, Turn, on
from areal_actors.credit import Credit
from areal_actors.engines.base import TrainingEngine
from areal_actors.messages import (
    BatchFormed,
    CheckpointWritten,
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


class Trainer(Actor):
    """`BatchFormed` is the truth of what a step trains; its trajectories are read from the log by their positions."""

    def __init__(
        self, prepare: Preparation, weights_folder: Callable[[int], str], clock: Callable[[], float], credit: Credit = EPISODE
    ) -> None:
        self.prepare = prepare
        self.credit = credit
        self.weights_folder = weights_folder
        self.clock = clock
        self.engine: TrainingEngine | None = None
        self.cursor = 0
        self.groups_trained = 0

    @on
    async def run_started(self, _: RunStarted) -> Emits[TrainerPhase | WeightsPublished]:
        async for phase in self._prepared():
            yield phase
        yield await self._published()

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
