"""The trainer: takes an optimizer step for each batch, in order, and publishes the weights."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from areal_actors.actor import Actor, Emits, Turn, on
from areal_actors.conversations.credit import Credit
from areal_actors.conversations.rows import EPISODE
from areal_actors.engines.base import TrainingEngine
from areal_actors.errors import RanksLost, UntrainableBatch
from areal_actors.messages import (
    BatchFormed,
    BatchRefused,
    CheckpointSaved,
    CheckpointWritten,
    EngineMismatch,
    ExamplesDrawn,
    ExamplesDropped,
    LossEvaluated,
    RunResumed,
    RunStarted,
    SaveCheckpoint,
    StepCompleted,
    Throughput,
    TrainerPhase,
    TrainingFellBack,
    TrainingHalted,
    TrajectoryExported,
    WeightsPublished,
)
from areal_actors.steps.engine_mismatch import EngineMonitor, reported
from areal_actors.steps.row_check import BatchRows, batch_rows
from areal_actors.steps.step_metrics import batch_metrics, rows_checksum
from areal_actors.text.example_rows import checksum, example_metrics
from areal_actors.values import Row, Trajectory, Value
from bus.errors import LogUnavailable

T = TypeVar("T")

MOST_FALLS = 3
"""Times that ranks may be lost between two completed steps."""

Progress = Callable[[str, int, int, dict[str, float]], None]
"""(phase, done, total, metrics): how far a long preparation is."""


class Preparation(Protocol):
    """Makes or finds the model, and the engine that trains it; slow, runs in a thread."""

    def __call__(self, progress: Progress) -> TrainingEngine:
        """Prepare; raises SetupError when the model cannot be had."""
        ...


class Lessons(Protocol):
    """What is learned in a run that has no episodes: examples as rows."""

    def begin(self, model_folder: str) -> ExamplesDropped | None:
        """Write rows for the model in this Hugging Face folder; says which are left out.

        Raises:
            SetupError: it has no tokenizer, or examples are too long for it.
        """
        ...

    def rows(self, numbers: Sequence[int]) -> list[Row]:
        """The rows of the examples with these numbers; raises SetupError when one of them cannot be written."""
        ...

    def held_out(self, weight_version: int) -> list[Row]:
        """The rows that this version is measured on; empty when it is not."""
        ...


class CountedStep(Value):
    """A step that the engine has counted."""

    rows: Sequence[Row]
    """Rows that it was taken on; none if it was skipped."""
    metrics: dict[str, float]
    refused: BatchRefused | None = None
    """What was left out of it."""

    @classmethod
    def of(cls, step: int, found: BatchRows, metrics: dict[str, float]) -> CountedStep:
        """A step that was taken, with all its updates or some."""
        skipped = int(metrics.get("skipped_updates", 0))
        if not skipped and not found.refused:
            return cls(rows=found.rows, metrics=metrics)
        cause = f"{skipped} updates of the step were skipped: their loss or gradient was not finite" if skipped else ""
        refused = BatchRefused(step=step, rows=found.refused, trained_rows=len(found.rows), cause=cause)
        return cls(rows=found.rows, metrics={**metrics, **_counted(found)}, refused=refused)


def _counted(found: BatchRows) -> dict[str, float]:
    return {"refused_rows": float(len(found.refused))}


class Trainer(Actor):
    """`BatchFormed` is the truth of what a step trains; its trajectories are read from the log by their positions.

    With `lessons` it is `ExamplesDrawn`: no episodes are run, nobody loads the weights, and only the first are published. Ranks
    that are lost go back to a checkpoint and take the steps since then again, from the same rows; nobody else notices. So does
    a trainer that is started again: what it hears of its earlier life tells it the checkpoint and the batches since.

    Rows that cannot be trained are left out of their step. A step that can change no weight is skipped, but counted and published
    like any other, so that the run keeps its number of steps and its capacity, and takes the same steps when it is resumed.
    """

    def __init__(
        self,
        prepare: Preparation,
        weights_folder: Callable[[int], str],
        clock: Callable[[], float],
        credit: Credit = EPISODE,
        lessons: Lessons | None = None,
        monitor: EngineMonitor | None = None,
        max_skipped_steps: int = 5,
    ) -> None:
        """After `max_skipped_steps` skipped steps in a row the run is to end."""
        self.prepare = prepare
        self.credit = credit
        self.lessons = lessons
        self.monitor = monitor
        self.max_skipped_steps = max_skipped_steps
        self.skipped: set[int] = set()
        """Steps that changed no weight, of those that this trainer has taken."""
        self.weights_folder = weights_folder
        self.clock = clock
        self.engine: TrainingEngine | None = None
        self.weight_version = -1
        """Steps that the run has taken; the engine's own may be lower after a fall."""
        self.cursor = 0
        self.groups_trained = 0
        self.taken: dict[int, BatchFormed | ExamplesDrawn] = {}
        """What was trained since the last checkpoint, by the weight version that it was trained on."""
        self.checkpoint: CheckpointSaved | None = None
        self.falls: list[TrainingFellBack] = []
        """Since the last completed step."""

    @on
    async def run_started(
        self, _: RunStarted, turn: Turn
    ) -> Emits[TrainerPhase | ExamplesDropped | WeightsPublished | LossEvaluated | TrainingFellBack]:
        async for phase in self._prepared():
            yield phase
        if turn.replayed and self.lessons is None:
            return
        published = await self._published(turn)
        if self.lessons is not None and (dropped := await asyncio.to_thread(self.lessons.begin, published.location.model)):
            yield dropped
        yield published
        if self.lessons is not None and not turn.replayed:
            async for measured in self._measured(self.lessons, turn):
                yield measured
        for fall in self._falls_told():
            yield fall

    @on
    async def run_resumed(self, _: RunResumed, turn: Turn) -> Emits[TrainerPhase | WeightsPublished | TrainingFellBack]:
        """Come to where the run was, and publish the weights of then: those of its earlier life are gone."""
        if turn.replayed:
            return
        async for phase in self._retaken(turn):
            yield phase
        if self.lessons is None:
            yield await self._published(turn)
        for fall in self._falls_told():
            yield fall

    @on
    async def batch_formed(
        self, event: BatchFormed, turn: Turn
    ) -> Emits[
        TrainerPhase | Throughput | BatchRefused | StepCompleted | EngineMismatch | WeightsPublished | TrainingHalted | TrainingFellBack
    ]:
        if event.step != self.weight_version:
            return
        if turn.replayed:
            self._took(event, turn)
            return
        async for phase in self._retaken(turn):
            yield phase
        found = await self._rows(event, turn)
        started = self.clock()
        step = await self._answer(turn, lambda engine: self._step(engine, found, event.step))
        self._took(event, turn)
        yield self._throughput(step.rows, started)
        if step.refused is not None:
            yield step.refused
        alarms = self.monitor.completed(event.step, step.rows, step.metrics) if self.monitor else []
        metrics = {**reported(step.metrics), **(batch_metrics(step.rows, event) if step.rows else {})}
        yield StepCompleted(step=self.weight_version, metrics=metrics, rows_checksum=rows_checksum(step.rows))
        for alarm in alarms:
            yield alarm
        yield await self._published(turn)
        for halted in self._halted(step):
            yield halted
        for fall in self._falls_told():
            yield fall

    @on
    async def examples_drawn(
        self, event: ExamplesDrawn, turn: Turn
    ) -> Emits[TrainerPhase | Throughput | BatchRefused | StepCompleted | LossEvaluated | TrainingHalted | TrainingFellBack]:
        if (lessons := self.lessons) is None or event.step != self.weight_version:
            return
        if turn.replayed:
            self._took(event, turn)
            return
        async for phase in self._retaken(turn):
            yield phase
        found = await self._rows(event, turn)
        started = self.clock()
        step = await self._answer(turn, lambda engine: self._step(engine, found, event.step))
        self._took(event, turn)
        yield self._throughput(step.rows, started)
        if step.refused is not None:
            yield step.refused
        yield StepCompleted(step=self.weight_version, metrics=example_metrics(step.metrics, step.rows), rows_checksum=checksum(step.rows))
        async for measured in self._measured(lessons, turn):
            yield measured
        for halted in self._halted(step):
            yield halted
        for fall in self._falls_told():
            yield fall

    @on
    async def save_checkpoint(self, work: SaveCheckpoint, turn: Turn) -> Emits[TrainerPhase | CheckpointWritten | TrainingFellBack]:
        async for phase in self._retaken(turn):
            yield phase
        await self._answer(turn, lambda engine: engine.save(work.folder))
        yield CheckpointWritten(folder=work.folder, step=self.weight_version, cursor=self.cursor)
        for fall in self._falls_told():
            yield fall

    @on
    async def checkpoint_saved(self, event: CheckpointSaved) -> None:
        self.checkpoint = event
        self.taken = {version: taken for version, taken in self.taken.items() if version >= event.step}

    # ------------------------------------------------------------ steps, and those that are taken again

    def _took(self, event: BatchFormed | ExamplesDrawn, turn: Turn) -> None:
        """Remember what was trained."""
        self.taken[event.step] = event
        self.weight_version = event.step + 1
        self.cursor = turn.sequence
        self.groups_trained += len(event.groups if isinstance(event, BatchFormed) else event.numbers)

    async def _retaken(self, turn: Turn) -> AsyncIterator[TrainerPhase]:
        """Take again, one by one, what a fresh engine has not taken of the run; most often nothing."""
        engine = self._ready()
        if self.checkpoint is not None and engine.weight_version < self.checkpoint.step:
            yield TrainerPhase(phase="loading the checkpoint")
            await self._answer(turn, lambda _: None, self.checkpoint.step)
        first = engine.weight_version
        while engine.weight_version < self.weight_version:
            done = max(engine.weight_version - first, 0)
            yield TrainerPhase(phase="taking steps again", done=done, total=self.weight_version - first)
            await self._answer(turn, lambda _: None, min(first + done + 1, self.weight_version))

    async def _answer(self, turn: Turn, ask: Callable[[TrainingEngine], T], at: int | None = None) -> T:
        """What the engine answers with the weights that the run is at, or that it had at `at`; after a fall it takes steps again first.

        Raises:
            RanksLost: more often than is worth another try.
        """
        engine = self._ready()
        while True:
            try:
                await self._caught_up(engine, turn, self.weight_version if at is None else at)
                return await asyncio.to_thread(ask, engine)
            except RanksLost as error:
                if len(self.falls) == MOST_FALLS:
                    raise
                back = self.checkpoint.step if self.checkpoint else 0
                self.falls.append(TrainingFellBack(step=self.weight_version, weight_version=back, reason=str(error)))

    async def _caught_up(self, engine: TrainingEngine, turn: Turn, weight_version: int) -> None:
        """Take the steps again that the engine has lost."""
        if self.checkpoint is not None and engine.weight_version < self.checkpoint.step:
            await asyncio.to_thread(engine.load, self.checkpoint.folder)
        while engine.weight_version < weight_version:
            event = self.taken[engine.weight_version]
            await asyncio.to_thread(self._step, engine, await self._rows(event, turn), event.step)

    def _step(self, engine: TrainingEngine, found: BatchRows, step: int) -> CountedStep:
        """Take a step on the rows that can be trained; one that can change no weight is skipped. Runs in a thread."""
        self.skipped.discard(step)
        cause = "" if found.rows else "no row of the batch can be trained"
        if found.rows:
            try:
                metrics = engine.step(found.rows)
            except UntrainableBatch as error:
                cause = str(error)
            else:
                return CountedStep.of(step, found, metrics)
        engine.step(())
        self.skipped.add(step)
        refused = BatchRefused(step=step, rows=found.refused, trained_rows=0, cause=cause)
        return CountedStep(rows=(), metrics={"skipped": 1.0, **_counted(found)}, refused=refused)

    def _halted(self, step: CountedStep) -> Iterator[TrainingHalted]:
        """The end of the run, when too many of the last steps were skipped."""
        in_a_row = next(count for count in itertools.count() if self.weight_version - 1 - count not in self.skipped)
        if step.refused is not None and in_a_row >= self.max_skipped_steps:
            why = step.refused.rows[0].cause if step.refused.rows else step.refused.cause
            yield TrainingHalted(
                reason=f"{in_a_row} steps in a row changed no weight, the last because of this: {why}; "
                "fix the cause, or raise trainer.max_skipped_steps"
            )

    def _falls_told(self) -> list[TrainingFellBack]:
        """The falls of what is done now; they count no more."""
        falls, self.falls = self.falls, []
        return falls

    async def _rows(self, event: BatchFormed | ExamplesDrawn, turn: Turn) -> BatchRows:
        if isinstance(event, ExamplesDrawn):
            assert self.lessons is not None
            return BatchRows(rows=await asyncio.to_thread(self.lessons.rows, event.numbers))
        members = [(index, member) for index, group in enumerate(event.groups) for member in group]
        envelopes = await turn.read([member.sequence for _, member in members])
        trajectories: list[tuple[int, Trajectory]] = []
        for (index, member), envelope in zip(members, envelopes, strict=True):
            trajectory = envelope.open(TrajectoryExported).trajectory
            if trajectory.episode != member.episode:
                raise LogUnavailable(f"position {member.sequence} of the log holds episode {trajectory.episode}, not {member.episode}")
            trajectories.append((index, trajectory))
        return batch_rows(event, trajectories, self.credit, self._ready().limits)

    async def _measured(self, lessons: Lessons, turn: Turn) -> AsyncIterator[LossEvaluated]:
        """The present weights on held-out examples, when they are due for it."""
        if rows := await asyncio.to_thread(lessons.held_out, self.weight_version):
            metrics = example_metrics(await self._answer(turn, lambda engine: engine.evaluate(rows)), rows)
            examples = int(metrics.pop("examples"))
            yield LossEvaluated(weight_version=self.weight_version, examples=examples, metrics=metrics)

    async def _published(self, turn: Turn) -> WeightsPublished:
        version = self.weight_version
        location = await self._answer(turn, lambda engine: engine.publish(self.weights_folder(version)))
        return WeightsPublished(weight_version=version, location=location)

    def _throughput(self, rows: Sequence[Row], started: float) -> Throughput:
        tokens = sum(len(row.token_ids) for row in rows)
        return Throughput(actor="trainer", side="training", tokens=tokens, started=started, seconds=self.clock() - started)

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
        self.weight_version = self.engine.weight_version

    def _ready(self) -> TrainingEngine:
        if self.engine is None:
            raise RuntimeError("the trainer heard of a batch before the run started")
        return self.engine

    def status(self) -> dict[str, float | str]:
        """The version it trains."""
        return {"weight_version": self.weight_version, "groups_trained": self.groups_trained}
