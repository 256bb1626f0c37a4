"""The trainer: takes an optimizer step for each batch, in order, and publishes the weights."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from areal_actors.actor import Actor, Emits, Turn, on
from areal_actors.actors.trainer_history import HistoryState, TrainedHistory
from areal_actors.actors.trainer_parts import Lessons, Preparation
from areal_actors.actors.trainer_recovery import Recovery, WayBack
from areal_actors.actors.trainer_steps import CountedStep, take_step
from areal_actors.conversations.credit import Credit
from areal_actors.conversations.rows import EPISODE
from areal_actors.engines.base import TrainingEngine
from areal_actors.engines.checkpoint_store import CheckpointStore
from areal_actors.errors import RanksLost
from areal_actors.messages import (
    BatchFormed,
    BatchRefused,
    CheckpointDamaged,
    CheckpointSaved,
    CheckpointWritten,
    EngineMismatch,
    ExamplesDrawn,
    ExamplesDropped,
    LogTrimmed,
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
from areal_actors.steps.engine_mismatch import EngineMonitor, reported_metrics
from areal_actors.steps.row_check import BatchRows, batch_rows
from areal_actors.steps.step_metrics import batch_metrics
from areal_actors.text.example_rows import example_metrics
from areal_actors.values import Row, Trajectory, Value
from bus.errors import LogUnavailable

T = TypeVar("T")

MOST_FALLS = 3
"""Times that ranks may be lost between two completed steps."""


class TrainerState(Value):
    """What a snapshot has: which checkpoints there are, and what was trained since the oldest of them."""

    weight_version: int
    cursor: int
    groups_trained: int
    past: HistoryState


class Trainer(Actor):
    """`BatchFormed` is the truth of what a step trains; its trajectories are read from the log by their positions.

    With `lessons` it is `ExamplesDrawn`: no episodes are run, nobody loads the weights, and only the first are published. Ranks
    that are lost go back to a checkpoint and take the steps since then again, from the same rows; nobody else notices. So does
    a trainer that is started again: what it hears of its earlier life tells it the checkpoints and the batches. A checkpoint is
    verified before it is loaded; a damaged one is set aside, and the one before it used, or the first weights. Every step that is
    taken again is compared with what the log has of it.

    Rows that cannot be trained are left out of their step. A step that can change no weight is skipped, but counted and published
    like any other, so that the run keeps its number of steps and its capacity, and takes the same steps when it is resumed.
    """

    state_type = TrainerState

    def __init__(
        self,
        prepare: Preparation,
        weights_folder: Callable[[int], str],
        clock: Callable[[], float],
        credit: Credit = EPISODE,
        lessons: Lessons | None = None,
        monitor: EngineMonitor | None = None,
        max_skipped_steps: int = 5,
        checkpoints: CheckpointStore | None = None,
        past: TrainedHistory | None = None,
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
        self.checkpoints = checkpoints or CheckpointStore(Path())
        self.past = past or TrainedHistory()
        kind = BatchFormed if lessons is None else ExamplesDrawn
        self.way_back = WayBack(self.past, self.checkpoints, self._taken, kind)
        self.falls = 0
        """Times that ranks were lost since the last completed step."""

    def snapshot(self) -> TrainerState:
        """What a trainer that takes over needs to come to the same weights."""
        return TrainerState(
            weight_version=self.weight_version, cursor=self.cursor, groups_trained=self.groups_trained, past=self.past.snapshot()
        )

    def restore(self, state: TrainerState) -> None:
        """Take over; the engine is prepared when it is needed first."""
        self.weight_version, self.cursor, self.groups_trained = state.weight_version, state.cursor, state.groups_trained
        self.past.restore(state.past)

    @on
    async def run_started(
        self, event: RunStarted, turn: Turn
    ) -> Emits[TrainerPhase | ExamplesDropped | WeightsPublished | LossEvaluated | Recovery]:
        self.past.started(event.recipe)
        async for phase in self._prepared():
            yield phase
        if turn.replayed and self.lessons is None:
            return
        published = await self._published(turn)
        model = str(self.checkpoints.root / published.location.model)
        if self.lessons is not None and (dropped := await asyncio.to_thread(self.lessons.begin, model)):
            yield dropped
        yield published
        if self.lessons is not None and not turn.replayed:
            async for measured in self._measured(self.lessons, turn):
                yield measured
        for recovery in self._recovered():
            yield recovery

    @on
    async def run_resumed(self, event: RunResumed, turn: Turn) -> Emits[TrainerPhase | WeightsPublished | Recovery]:
        """Come to where the run was, and publish the weights of then: those of its earlier life are gone."""
        self.past.resumed(event)
        if turn.replayed:
            return
        async for phase in self._retaken(turn):
            yield phase
        if self.lessons is None:
            yield await self._published(turn)
        for recovery in self._recovered():
            yield recovery

    @on
    async def batch_formed(
        self, event: BatchFormed, turn: Turn
    ) -> Emits[TrainerPhase | Throughput | BatchRefused | StepCompleted | EngineMismatch | WeightsPublished | TrainingHalted | Recovery]:
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
        metrics = {**reported_metrics(step.metrics), **(batch_metrics(step.rows, event) if step.rows else {})}
        yield StepCompleted(step=self.weight_version, metrics=metrics, rows_checksum=self.way_back.check_rows(event, step))
        for alarm in alarms:
            yield alarm
        yield await self._published(turn)
        for halted in self._halted(step):
            yield halted
        for recovery in self._recovered():
            yield recovery

    @on
    async def examples_drawn(
        self, event: ExamplesDrawn, turn: Turn
    ) -> Emits[TrainerPhase | Throughput | BatchRefused | StepCompleted | LossEvaluated | TrainingHalted | Recovery]:
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
        yield StepCompleted(
            step=self.weight_version,
            metrics=example_metrics(step.metrics, step.rows),
            rows_checksum=self.way_back.check_rows(event, step),
            weights_checksum=await self._answer(turn, self.way_back.check_weights),
        )
        async for measured in self._measured(lessons, turn):
            yield measured
        for halted in self._halted(step):
            yield halted
        for recovery in self._recovered():
            yield recovery

    @on
    async def save_checkpoint(self, work: SaveCheckpoint, turn: Turn) -> Emits[TrainerPhase | CheckpointWritten | Recovery]:
        async for phase in self._retaken(turn):
            yield phase
        await self._answer(turn, lambda engine: self.checkpoints.write(engine.save, work.folder))
        yield CheckpointWritten(folder=work.folder, step=self.weight_version, cursor=self.cursor)
        for recovery in self._recovered():
            yield recovery

    @on
    async def checkpoint_saved(self, event: CheckpointSaved) -> None:
        self.past.saved(event)

    @on
    async def checkpoint_damaged(self, event: CheckpointDamaged) -> None:
        self.past.lost(event.step)

    @on
    async def step_completed(self, event: StepCompleted, turn: Turn) -> None:
        """Its own, or that of its earlier life."""
        self.past.completed(event, replayed=turn.replayed)

    @on
    async def weights_published(self, event: WeightsPublished, turn: Turn) -> None:
        """Its own, or that of its earlier life."""
        self.past.published(event, replayed=turn.replayed)

    @on
    async def log_trimmed(self, event: LogTrimmed) -> None:
        self.past.trimmed(event.step)

    # ------------------------------------------------------------ steps, and those that are taken again

    def _took(self, event: BatchFormed | ExamplesDrawn, turn: Turn) -> None:
        """Remember what was trained."""
        self.past.batches[event.step] = turn.sequence
        self.weight_version = event.step + 1
        self.cursor = turn.sequence
        self.groups_trained += len(event.groups if isinstance(event, BatchFormed) else event.numbers)

    async def _retaken(self, turn: Turn) -> AsyncIterator[TrainerPhase]:
        """Take again, one by one, what a fresh engine has not taken of the run; most often nothing."""
        if self.engine is None and self.weight_version >= 0:
            async for phase in self._prepared():
                yield phase
            if self.lessons is not None:
                location = await asyncio.to_thread(self._ready().publish, self.weights_folder(self._ready().weight_version))
                await asyncio.to_thread(self.lessons.begin, location.model)
        engine = self._ready()
        if (saved := self.past.checkpoint) is not None and engine.weight_version < saved.step:
            unverified = "" if saved.manifest else " (written by an earlier version: it has no manifest to verify it by)"
            yield TrainerPhase(phase=f"loading the checkpoint{unverified}")
            await self._answer(turn, lambda _: None, saved.step)
        first = engine.weight_version
        while engine.weight_version < self.weight_version:
            done = max(engine.weight_version - first, 0)
            yield TrainerPhase(phase="taking steps again", done=done, total=self.weight_version - first)
            await self._answer(turn, lambda _: None, min(first + done + 1, self.weight_version))

    async def _answer(self, turn: Turn, ask: Callable[[TrainingEngine], T], at: int | None = None) -> T:
        """What the engine answers with the weights that the run is at, or that it had at `at`; after a fall it takes steps again first.

        Raises:
            RanksLost: more often than is worth another try.
            StepMismatch: a step that is taken again differs from the log, also from an earlier checkpoint.
            CheckpointError: there is nothing left to go back to.
        """
        engine = self._ready()
        while True:
            try:
                await self.way_back.catch_up(engine, turn, self.weight_version if at is None else at)
                return await asyncio.to_thread(ask, engine)
            except RanksLost as error:
                if self.falls == MOST_FALLS:
                    raise
                self.falls += 1
                back = self.past.checkpoint.step if self.past.checkpoint else 0
                self.way_back.events.append(TrainingFellBack(step=self.weight_version, weight_version=back, reason=str(error)))

    async def _taken(self, engine: TrainingEngine, event: BatchFormed | ExamplesDrawn, turn: Turn) -> CountedStep:
        """Take the step of a batch."""
        return await asyncio.to_thread(self._step, engine, await self._rows(event, turn), event.step)

    def _step(self, engine: TrainingEngine, found: BatchRows, step: int) -> CountedStep:
        """Take a step, and remember whether it was skipped. Slow: for a thread."""
        taken = take_step(engine, found, step)
        (self.skipped.add if taken.skipped else self.skipped.discard)(step)
        return taken

    def _halted(self, step: CountedStep) -> Iterator[TrainingHalted]:
        """The end of the run, when too many of the last steps were skipped."""
        in_a_row = next(count for count in itertools.count() if self.weight_version - 1 - count not in self.skipped)
        if step.refused is not None and in_a_row >= self.max_skipped_steps:
            why = step.refused.rows[0].cause if step.refused.rows else step.refused.cause
            yield TrainingHalted(
                reason=f"{in_a_row} steps in a row changed no weight, the last because of this: {why}; "
                "fix the cause, or raise trainer.max_skipped_steps"
            )

    def _recovered(self) -> list[Recovery]:
        """What happened on the way; a fall counts no more."""
        self.falls = 0
        return self.way_back.take_events()

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
        self.way_back.note(self.past.check_weights(version, location.checksum))
        return WeightsPublished(weight_version=version, location=location.relative_to(self.checkpoints.root))

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
        self.weight_version = max(self.weight_version, self.engine.weight_version)

    def _ready(self) -> TrainingEngine:
        if self.engine is None:
            raise RuntimeError("the trainer heard of a batch before the run started")
        return self.engine

    def status(self) -> dict[str, float | str]:
        """The version it trains."""
        return {"weight_version": self.weight_version, "groups_trained": self.groups_trained}
