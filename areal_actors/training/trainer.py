"""The trainer: takes an optimizer step for each batch, in order, and publishes the weights."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from areal_actors.core.errors import RanksLost
from areal_actors.core.values import Row, Trajectory, Value
from areal_actors.messages import (
    BatchFormed,
    BatchRefused,
    CheckpointCommitted,
    CheckpointDamaged,
    CheckpointStaged,
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
    TrainerProgress,
    TrainerRolledBack,
    TrainingHalted,
    TrajectoryExported,
    WeightsPublished,
)
from areal_actors.runtime.actor import Actor, Context, Emits, on
from areal_actors.sequences.credit import Credit
from areal_actors.sequences.row_check import BatchRows, batch_rows
from areal_actors.sequences.rows import EPISODE
from areal_actors.sequences.step_metrics import REWARD_METRIC, batch_metrics, example_metrics
from areal_actors.training.checkpoint_store import CheckpointStore
from areal_actors.training.engine import TrainingEngine
from areal_actors.training.engine_mismatch import EngineMonitor, reported_metrics
from areal_actors.training.trainer_history import HistoryState, TrainedHistory
from areal_actors.training.trainer_parts import EngineFactory, ExampleSequences
from areal_actors.training.trainer_recovery import RecoveryEvent, StepRecovery
from areal_actors.training.trainer_steps import CountedStep, take_step
from bus.errors import LogUnavailable

T = TypeVar("T")

MAX_ROLLBACKS = 3
"""Maximum of rollbacks between two completed steps."""


class TrainerState(Value):
    """Snapshot of the trainer: checkpoints, and the steps since the oldest of them."""

    weight_version: int
    cursor: int
    groups_trained: int
    past: HistoryState


class Trainer(Actor):
    """Trains `BatchFormed` events, whose trajectories are read from the log by their positions.

    With `examples` it trains `ExamplesDrawn` events instead: there are no episodes and no inference workers, and only the initial
    weights are published. After a loss of ranks the trainer rolls back to a checkpoint and replays the steps since from the same
    rows; no other actor is affected. A restarted trainer does the same with the checkpoints and batches from the log. A checkpoint
    is verified before it is loaded; a damaged one is set aside, and the previous one, or the initial weights, are used. Every
    replayed step is compared with the log.

    Untrainable rows are left out of their step. A step that can change no weight is skipped, but counted and published like any
    other, so that the run keeps its number of steps and its capacity, and takes the same steps when it is resumed.
    """

    state_type = TrainerState

    def __init__(
        self,
        engine_factory: EngineFactory,
        weights_folder: Callable[[int], str],
        clock: Callable[[], float],
        credit: Credit = EPISODE,
        examples: ExampleSequences | None = None,
        monitor: EngineMonitor | None = None,
        max_skipped_steps: int = 5,
        checkpoints: CheckpointStore | None = None,
        step_history: TrainedHistory | None = None,
    ) -> None:
        """After `max_skipped_steps` consecutive skipped steps the run ends."""
        self.engine_factory = engine_factory
        self.credit = credit
        self.examples = examples
        self.monitor = monitor
        self.max_skipped_steps = max_skipped_steps
        self.skipped: set[int] = set()
        """Steps of this trainer that changed no weight."""
        self.weights_folder = weights_folder
        self.clock = clock
        self.engine: TrainingEngine | None = None
        self.weight_version = -1
        """Steps of the run; the engine's own version may be lower after a rollback."""
        self.cursor = 0
        self.groups_trained = 0
        self.checkpoints = checkpoints or CheckpointStore(Path())
        self.step_history = step_history or TrainedHistory()
        kind = BatchFormed if examples is None else ExamplesDrawn
        self.recovery = StepRecovery(self.step_history, self.checkpoints, self._take_batch, kind)
        self.rollbacks = 0
        """Rollbacks since the last completed step."""

    def snapshot(self) -> TrainerState:
        """Returns the state from which another trainer reaches the same weights."""
        return TrainerState(
            weight_version=self.weight_version, cursor=self.cursor, groups_trained=self.groups_trained, past=self.step_history.snapshot()
        )

    def restore(self, state: TrainerState) -> None:
        """Restore a snapshot; the engine is prepared on first use."""
        self.weight_version, self.cursor, self.groups_trained = state.weight_version, state.cursor, state.groups_trained
        self.step_history.restore(state.past)

    @on
    async def run_started(
        self, event: RunStarted, context: Context
    ) -> Emits[TrainerProgress | ExamplesDropped | WeightsPublished | LossEvaluated | RecoveryEvent]:
        self.step_history.started(event.recipe)
        async for phase in self._prepare_engine():
            yield phase
        if context.replayed and self.examples is None:
            return
        published = await self._publish_weights(context)
        model = str(self.checkpoints.root / published.location.model)
        if self.examples is not None and (dropped := await asyncio.to_thread(self.examples.begin, model)):
            yield dropped
        yield published
        if self.examples is not None and not context.replayed:
            async for measured in self._evaluate_examples(self.examples, context):
                yield measured
        for recovery in self._take_recovery_events():
            yield recovery

    @on
    async def run_resumed(self, event: RunResumed, context: Context) -> Emits[TrainerProgress | WeightsPublished | RecoveryEvent]:
        """Replay to the current step and publish its weights, because those of the previous process are gone."""
        self.step_history.resumed(event)
        if context.replayed:
            return
        async for phase in self._replay_steps(context):
            yield phase
        if self.examples is None:
            yield await self._publish_weights(context)
        for recovery in self._take_recovery_events():
            yield recovery

    @on
    async def train(
        self, event: BatchFormed | ExamplesDrawn, context: Context
    ) -> Emits[
        TrainerProgress
        | Throughput
        | BatchRefused
        | StepCompleted
        | EngineMismatch
        | WeightsPublished
        | LossEvaluated
        | TrainingHalted
        | RecoveryEvent
    ]:
        if event.step != self.weight_version or isinstance(event, ExamplesDrawn) != (self.examples is not None):
            return
        if context.replayed:
            self._record_step(event, context)
            return
        async for phase in self._replay_steps(context):
            yield phase
        found = await self._rows(event, context)
        started = self.clock()
        step = await self._call_engine(context, lambda engine: self._step(engine, found, event.step))
        self._record_step(event, context)
        yield self._throughput(step.rows, started)
        if step.refused is not None:
            yield step.refused
        alarms = self.monitor.completed(event.step, step.rows, step.metrics) if self.monitor else []
        yield await self._step_completed(event, found, step, context)
        for alarm in alarms:
            yield alarm
        if self.examples is None:
            yield await self._publish_weights(context)
        else:
            async for measured in self._evaluate_examples(self.examples, context):
                yield measured
        for message in (*self._halted(step), *self._take_recovery_events()):
            yield message

    @on
    async def save_checkpoint(self, work: SaveCheckpoint, context: Context) -> Emits[TrainerProgress | CheckpointStaged | RecoveryEvent]:
        async for phase in self._replay_steps(context):
            yield phase
        await self._call_engine(context, lambda engine: self.checkpoints.write(engine.save, work.folder))
        yield CheckpointStaged(folder=work.folder, step=self.weight_version, cursor=self.cursor)
        for recovery in self._take_recovery_events():
            yield recovery

    @on
    def checkpoint_committed(self, event: CheckpointCommitted) -> None:
        self.step_history.saved(event)

    @on
    def checkpoint_damaged(self, event: CheckpointDamaged) -> None:
        self.step_history.lost(event.step)

    @on
    def step_completed(self, event: StepCompleted, context: Context) -> None:
        """Record a step or version, its own or of the previous process."""
        self.step_history.completed(event, replayed=context.replayed)

    @on
    def weights_published(self, event: WeightsPublished, context: Context) -> None:
        """Record a step or version, its own or of the previous process."""
        self.step_history.published(event, replayed=context.replayed)

    @on
    def log_trimmed(self, event: LogTrimmed) -> None:
        self.step_history.trimmed(event.step)

    # ------------------------------------------------------------ steps and replays

    async def _step_completed(
        self, event: BatchFormed | ExamplesDrawn, found: BatchRows, step: CountedStep, context: Context
    ) -> StepCompleted:
        rows_checksum = self.recovery.check_rows(event, step)
        if isinstance(event, BatchFormed):
            of_reward = {f"{REWARD_METRIC}{name}": mean for name, mean in found.reward_metrics.items()}
            metrics = {**reported_metrics(step.metrics), **(batch_metrics(step.rows, event) if step.rows else {}), **of_reward}
            weights_checksum = ""  # `WeightsPublished` has it
        else:
            metrics = example_metrics(step.metrics, step.rows)
            weights_checksum = await self._call_engine(context, self.recovery.check_weights)
        return StepCompleted(step=self.weight_version, metrics=metrics, rows_checksum=rows_checksum, weights_checksum=weights_checksum)

    def _record_step(self, event: BatchFormed | ExamplesDrawn, context: Context) -> None:
        """Record the input of a step."""
        self.step_history.batches[event.step] = context.sequence
        self.weight_version = event.step + 1
        self.cursor = context.sequence
        self.groups_trained += len(event.groups if isinstance(event, BatchFormed) else event.numbers)

    async def _replay_steps(self, context: Context) -> AsyncIterator[TrainerProgress]:
        """Replay the steps of the run that a new engine lacks, one by one; usually none."""
        if self.engine is None and self.weight_version >= 0:
            async for phase in self._prepare_engine():
                yield phase
            if self.examples is not None:
                location = await asyncio.to_thread(
                    self._require_engine().publish, self.weights_folder(self._require_engine().weight_version)
                )
                await asyncio.to_thread(self.examples.begin, location.model)
        engine = self._require_engine()
        if (saved := self.step_history.checkpoint) is not None and engine.weight_version < saved.step:
            unverified = "" if saved.manifest else " (written by an earlier version, without a manifest to verify it)"
            yield TrainerProgress(phase=f"loading the checkpoint{unverified}")
            await self._call_engine(context, lambda _: None, saved.step)
        first = engine.weight_version
        while engine.weight_version < self.weight_version:
            done = max(engine.weight_version - first, 0)
            yield TrainerProgress(phase="taking steps again", done=done, total=self.weight_version - first)
            await self._call_engine(context, lambda _: None, min(first + done + 1, self.weight_version))

    async def _call_engine(self, context: Context, call: Callable[[TrainingEngine], T], at: int | None = None) -> T:
        """Call the engine at the current version, or at version `at`; replays steps before if the engine is behind.

        Raises:
            RanksLost: more than `MAX_ROLLBACKS` times.
            StepMismatch: a replayed step differs from the log, also from an earlier checkpoint.
            CheckpointError: no checkpoint is left.
        """
        engine = self._require_engine()
        while True:
            try:
                await self.recovery.replay_to(engine, context, self.weight_version if at is None else at)
                return await asyncio.to_thread(call, engine)
            except RanksLost as error:
                if self.rollbacks == MAX_ROLLBACKS:
                    raise
                self.rollbacks += 1
                back = self.step_history.checkpoint.step if self.step_history.checkpoint else 0
                self.recovery.events.append(TrainerRolledBack(step=self.weight_version, weight_version=back, reason=str(error)))

    async def _take_batch(self, engine: TrainingEngine, event: BatchFormed | ExamplesDrawn, context: Context) -> CountedStep:
        """Take the step of a batch."""
        return await asyncio.to_thread(self._step, engine, await self._rows(event, context), event.step)

    def _step(self, engine: TrainingEngine, found: BatchRows, step: int) -> CountedStep:
        """Take a step, and record whether it was skipped. Slow: run in a thread."""
        taken = take_step(engine, found, step)
        (self.skipped.add if taken.skipped else self.skipped.discard)(step)
        return taken

    def _halted(self, step: CountedStep) -> Iterator[TrainingHalted]:
        """Yields the event that ends the run if too many consecutive steps were skipped."""
        in_a_row = next(count for count in itertools.count() if self.weight_version - 1 - count not in self.skipped)
        if step.refused is not None and in_a_row >= self.max_skipped_steps:
            why = step.refused.rows[0].cause if step.refused.rows else step.refused.cause
            yield TrainingHalted(
                reason=f"{in_a_row} steps in a row changed no weight, the last because of this: {why}; "
                "fix the cause, or raise trainer.max_skipped_steps"
            )

    def _take_recovery_events(self) -> list[RecoveryEvent]:
        """Returns the events of recoveries; resets the count of rollbacks."""
        self.rollbacks = 0
        return self.recovery.take_events()

    async def _rows(self, event: BatchFormed | ExamplesDrawn, context: Context) -> BatchRows:
        if isinstance(event, ExamplesDrawn):
            assert self.examples is not None
            return BatchRows(rows=await asyncio.to_thread(self.examples.rows, event.numbers))
        members = [(index, member) for index, group in enumerate(event.groups) for member in group]
        envelopes = await context.read([member.sequence for _, member in members])
        trajectories: list[tuple[int, Trajectory]] = []
        for (index, member), envelope in zip(members, envelopes, strict=True):
            trajectory = envelope.open(TrajectoryExported).trajectory
            if trajectory.episode != member.episode:
                raise LogUnavailable(f"position {member.sequence} of the log holds episode {trajectory.episode}, not {member.episode}")
            trajectories.append((index, trajectory))
        return batch_rows(event, trajectories, self.credit, self._require_engine().limits)

    async def _evaluate_examples(self, source: ExampleSequences, context: Context) -> AsyncIterator[LossEvaluated]:
        """Evaluate the current weights on held-out examples if an evaluation is due."""
        if rows := await asyncio.to_thread(source.held_out, self.weight_version):
            metrics = example_metrics(await self._call_engine(context, lambda engine: engine.evaluate(rows)), rows)
            examples = int(metrics.pop("examples"))
            yield LossEvaluated(weight_version=self.weight_version, examples=examples, metrics=metrics)

    async def _publish_weights(self, context: Context) -> WeightsPublished:
        version = self.weight_version
        location = await self._call_engine(context, lambda engine: engine.publish(self.weights_folder(version)))
        self.recovery.note(self.step_history.check_weights(version, location.checksum))
        return WeightsPublished(weight_version=version, location=location.relative_to(self.checkpoints.root))

    def _throughput(self, rows: Sequence[Row], started: float) -> Throughput:
        tokens = sum(len(row.token_ids) for row in rows)
        return Throughput(actor="trainer", side="training", tokens=tokens, started=started, seconds=self.clock() - started)

    async def _prepare_engine(self) -> AsyncIterator[TrainerProgress]:
        """Make the engine in a thread and yield its progress."""
        loop = asyncio.get_running_loop()
        phases: asyncio.Queue[TrainerProgress | None] = asyncio.Queue()

        def progress(phase: str, done: int, total: int, metrics: dict[str, float]) -> None:
            loop.call_soon_threadsafe(phases.put_nowait, TrainerProgress(phase=phase, done=done, total=total, metrics=metrics))

        def over(_: object) -> None:
            phases.put_nowait(None)

        preparing = asyncio.create_task(asyncio.to_thread(self.engine_factory, progress))
        preparing.add_done_callback(over)
        while (phase := await phases.get()) is not None:
            yield phase
        self.engine = await preparing
        self.weight_version = max(self.weight_version, self.engine.weight_version)

    def _require_engine(self) -> TrainingEngine:
        if self.engine is None:
            raise RuntimeError("the trainer received a batch before the run started")
        return self.engine

    def status(self) -> dict[str, float | str]:
        """Current version and groups."""
        return {"weight_version": self.weight_version, "groups_trained": self.groups_trained}
