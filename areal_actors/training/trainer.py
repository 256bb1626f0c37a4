"""The trainer: takes an optimizer step for each batch, in order, and publishes the weights."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

from areal_actors.core.errors import RankFailed, UntrainableBatch
from areal_actors.core.values import TrainingSequence, Trajectory, Value
from areal_actors.messages import (
    BatchFormed,
    BatchRefused,
    CheckpointCommitted,
    CheckpointDamaged,
    CheckpointStaged,
    EngineMismatch,
    EngineSlept,
    ExamplesDrawn,
    ExamplesDropped,
    LogTrimmed,
    LossEvaluated,
    ReleaseMemory,
    RunResumed,
    RunStarted,
    SaveCheckpoint,
    StepCompleted,
    Throughput,
    TrainerProgress,
    TrainingHalted,
    TrajectoryExported,
    WeightsPublished,
)
from areal_actors.runtime.actor import Actor, Context, Emits, on
from areal_actors.sequences.build import EPISODE
from areal_actors.sequences.credit import Credit
from areal_actors.sequences.sequence_check import BatchSequences, batch_sequences
from areal_actors.sequences.step_metrics import REWARD_METRIC, batch_metrics, example_metrics
from areal_actors.training.checkpoint_store import CheckpointStore
from areal_actors.training.engine import EngineFactory, SupervisedData, TrainingEngine
from areal_actors.training.engine_mismatch import EngineMonitor, reported_metrics
from areal_actors.training.trainer_history import HistoryState, TrainedHistory
from areal_actors.training.trainer_recovery import RecoveredEngine, RecoveryEvent, StepInput
from areal_actors.training.trainer_sleep import EngineSleep
from areal_actors.vision.files import ImageFolder
from areal_bus.errors import LogUnavailable

MAX_STEP_FAILURES = 2
"""Exceptions of ranks in a step, after which its batch is refused."""


class TrainerState(Value):
    """Snapshot of the trainer: checkpoints, and the steps since the oldest of them."""

    weight_version: int
    cursor: int
    groups_trained: int
    past: HistoryState


class CountedStep(Value):
    """A step counted by the engine."""

    sequences: Sequence[TrainingSequence]
    """Trained sequences; empty if the step was skipped, because it could change no weight."""
    metrics: dict[str, float]
    refused: BatchRefused | None = None
    """Sequences or updates left out."""


class Trainer(Actor):
    """Trains `BatchFormed` events, whose trajectories are read from the log by their positions.

    With `examples` it trains `ExamplesDrawn` events instead: there are no episodes and no inference workers, and only
    the initial weights are published. After a loss of ranks the trainer rolls back to a checkpoint and replays the
    steps since from the same sequences; no other actor is affected. A restarted trainer does the same with the
    checkpoints and batches from the log. A checkpoint is verified before it is loaded; a damaged one is set aside, and
    the previous one, or the initial weights, are used. Every replayed step is compared with the log.

    Untrainable sequences are left out of their step. A step that can change no weight is skipped, but counted and
    published like any other, so that the run keeps its number of steps and its capacity, and takes the same steps when
    it is resumed.
    """

    asks = (ReleaseMemory,)
    state_type = TrainerState
    state_version = 2

    def __init__(
        self,
        engine_factory: EngineFactory,
        weights_folder: Callable[[int], str],
        clock: Callable[[], float],
        credit: Credit = EPISODE,
        examples: SupervisedData | None = None,
        monitor: EngineMonitor | None = None,
        max_skipped_steps: int = 5,
        checkpoints: CheckpointStore | None = None,
        step_history: TrainedHistory | None = None,
        engine_sleep: EngineSleep | None = None,
    ) -> None:
        """After `max_skipped_steps` consecutive skipped steps the run ends.

        With `engine_sleep` engines sleep during each step.
        """
        self.engine_sleep = engine_sleep
        self.credit = credit
        self.examples = examples
        self.monitor = monitor
        self.max_skipped_steps = max_skipped_steps
        self.skipped: set[int] = set()
        """Steps of this trainer that changed no weight."""
        self.failures: dict[int, list[str]] = {}
        """Exceptions of ranks in a step, by step."""
        self.weights_folder = weights_folder
        self.clock = clock
        self.cursor = 0
        self.groups_trained = 0
        self.checkpoints = checkpoints or CheckpointStore(Path())
        self.images = ImageFolder.of_run(self.checkpoints.root)
        self.step_history = step_history or TrainedHistory()
        kind = BatchFormed if examples is None else ExamplesDrawn
        self.recovered = RecoveredEngine(engine_factory, self.step_history, self.checkpoints, self._take_again, kind)

    @property
    def engine(self) -> TrainingEngine | None:
        """The engine; None before the run started or resumed."""
        return self.recovered.engine

    @property
    def weight_version(self) -> int:
        """Steps of the run; -1 before it started."""
        return self.recovered.weight_version

    def snapshot(self) -> TrainerState:
        """Returns the state from which another trainer reaches the same weights."""
        return TrainerState(
            weight_version=self.weight_version,
            cursor=self.cursor,
            groups_trained=self.groups_trained,
            past=self.step_history.snapshot(),
        )

    def restore(self, state: TrainerState) -> None:
        """Restore a snapshot; the engine is prepared on first use."""
        self.recovered.weight_version = state.weight_version
        self.cursor, self.groups_trained = state.cursor, state.groups_trained
        self.step_history.restore(state.past)

    @on
    async def run_started(
        self, event: RunStarted, context: Context
    ) -> Emits[TrainerProgress | ExamplesDropped | WeightsPublished | LossEvaluated | RecoveryEvent]:
        self.step_history.record_start(event.recipe)
        async for phase in self.recovered.prepare():
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
        for recovery in self.recovered.take_events():
            yield recovery

    @on
    async def run_resumed(
        self, event: RunResumed, context: Context
    ) -> Emits[TrainerProgress | WeightsPublished | RecoveryEvent]:
        """Replay to the current step and publish its weights, because those of the previous process are gone."""
        self.step_history.record_resume(event)
        if context.replayed:
            return
        async for phase in self._catch_up(context):
            yield phase
        if self.examples is None:
            yield await self._publish_weights(context)
        for recovery in self.recovered.take_events():
            yield recovery

    @on
    async def train(
        self, event: BatchFormed | ExamplesDrawn, context: Context
    ) -> Emits[
        TrainerProgress
        | EngineSlept
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
        async for preparation in self._before_step(event.step, context):
            yield preparation
        sequences = await self._sequences(event, context)
        started = self.clock()
        step = await self.recovered.call(context, lambda engine: self._step(engine, sequences, event.step))
        self._record_step(event, context)
        yield self._throughput(step.sequences, started)
        if step.refused is not None:
            yield step.refused
        alarms = self.monitor.complete_step(event.step, step.sequences, step.metrics) if self.monitor else []
        yield await self._step_completed(event, sequences, step, context)
        for alarm in alarms:
            yield alarm
        if self.examples is None:
            yield await self._publish_weights(context)
        else:
            async for measured in self._evaluate_examples(self.examples, context):
                yield measured
        for message in (*self._halt_if_skipping(step), *self.recovered.take_events()):
            yield message

    @on
    async def save_checkpoint(
        self, work: SaveCheckpoint, context: Context
    ) -> Emits[TrainerProgress | CheckpointStaged | RecoveryEvent]:
        async for phase in self._catch_up(context):
            yield phase
        await self.recovered.call(context, lambda engine: self.checkpoints.write(engine.save, work.folder))
        yield CheckpointStaged(folder=work.folder, step=self.weight_version, cursor=self.cursor)
        for recovery in self.recovered.take_events():
            yield recovery

    @on
    def checkpoint_committed(self, event: CheckpointCommitted) -> None:
        self.step_history.record_saved(event)

    @on
    def checkpoint_damaged(self, event: CheckpointDamaged) -> None:
        self.step_history.remove_checkpoint(event.step)

    @on
    def step_completed(self, event: StepCompleted, context: Context) -> None:
        self.step_history.record_step(event, replayed=context.replayed)

    @on
    def weights_published(self, event: WeightsPublished, context: Context) -> None:
        self.step_history.record_published(event, replayed=context.replayed)

    @on
    def log_trimmed(self, event: LogTrimmed) -> None:
        self.step_history.trim(event.step)

    # ------------------------------------------------------------ a step

    async def _before_step(self, step: int, context: Context) -> AsyncIterator[EngineSlept | TrainerProgress]:
        """Have engines release their memory, and replay the steps that this process lacks."""
        if self.engine_sleep is not None:
            async for slept in self.engine_sleep.before_step(step, context):
                yield slept
        async for phase in self._catch_up(context):
            yield phase

    async def _sequences(self, event: StepInput, context: Context) -> BatchSequences:
        if isinstance(event, ExamplesDrawn):
            assert self.examples is not None
            return BatchSequences(sequences=await asyncio.to_thread(self.examples.sequences, event.numbers))
        members = [(index, member) for index, group in enumerate(event.groups) for member in group]
        envelopes = await context.read([member.sequence for _, member in members])
        trajectories: list[tuple[int, Trajectory]] = []
        for (index, member), envelope in zip(members, envelopes, strict=True):
            trajectory = envelope.open(TrajectoryExported).trajectory
            if trajectory.episode != member.episode:
                raise LogUnavailable(
                    f"position {member.sequence} of the log holds episode {trajectory.episode}, not {member.episode}"
                )
            trajectories.append((index, trajectory))
        return batch_sequences(event, trajectories, self.credit, self.recovered.require().limits, self.images)

    def _step(self, engine: TrainingEngine, batch: BatchSequences, step: int) -> CountedStep:
        """Take a step on the trainable sequences; skip it if it can change no weight. Slow: run in a thread."""
        metrics = {"skipped": 1.0}
        cause = "" if batch.sequences else "no sequence of the batch can be trained"
        if len(failures := self.failures.get(step, [])) >= MAX_STEP_FAILURES:
            cause = failures[-1]
        elif batch.sequences:
            try:
                metrics = engine.step(batch.sequences)
            except UntrainableBatch as error:
                cause = str(error)
            except RankFailed as error:  # the group starts again, and the step is repeated
                self.failures[step] = [*failures, str(error)]
                raise
        sequences = () if cause else batch.sequences
        if not sequences:
            engine.step(())
            self.skipped.add(step)
        else:
            self.skipped.discard(step)
            if updates := int(metrics.get("skipped_updates", 0)):
                reason = "their loss or gradient was not finite, or a pass failed"
                cause = f"{updates} updates of the step were skipped: {reason}"
        if not cause and not batch.refused:
            return CountedStep(sequences=sequences, metrics=metrics)
        refused = BatchRefused(step=step, sequences=batch.refused, trained_sequences=len(sequences), cause=cause)
        return CountedStep(
            sequences=sequences, metrics={**metrics, "refused_sequences": float(len(batch.refused))}, refused=refused
        )

    def _record_step(self, event: StepInput, context: Context) -> None:
        self.step_history.batches[event.step] = context.sequence
        self.recovered.weight_version = event.step + 1
        self.cursor = context.sequence
        self.groups_trained += len(event.groups if isinstance(event, BatchFormed) else event.numbers)

    async def _step_completed(
        self, event: StepInput, batch: BatchSequences, step: CountedStep, context: Context
    ) -> StepCompleted:
        sequences_checksum = self.recovered.check_sequences(event, step.sequences)
        if isinstance(event, BatchFormed):
            of_batch = batch_metrics(step.sequences, event) if step.sequences else {}
            of_reward = {f"{REWARD_METRIC}{name}": mean for name, mean in batch.reward_metrics.items()}
            metrics = {**reported_metrics(step.metrics), **of_batch, **of_reward}
            weights_checksum = ""  # `WeightsPublished` has it
        else:
            metrics = example_metrics(step.metrics, step.sequences)
            weights_checksum = await self.recovered.call(context, self.recovered.check_weights)
        return StepCompleted(
            step=self.weight_version,
            metrics=metrics,
            sequences_checksum=sequences_checksum,
            weights_checksum=weights_checksum,
        )

    async def _publish_weights(self, context: Context) -> WeightsPublished:
        version = self.weight_version
        location = await self.recovered.call(context, lambda engine: engine.publish(self.weights_folder(version)))
        self.recovered.note(self.step_history.check("weights", version, location.checksum))
        return WeightsPublished(weight_version=version, location=location.relative_to(self.checkpoints.root))

    def _throughput(self, sequences: Sequence[TrainingSequence], started: float) -> Throughput:
        tokens, seconds = sum(len(sequence.token_ids) for sequence in sequences), self.clock() - started
        return Throughput(actor="trainer", side="training", tokens=tokens, started=started, seconds=seconds)

    def _halt_if_skipping(self, step: CountedStep) -> Iterator[TrainingHalted]:
        """Yields the event that ends the run if too many consecutive steps were skipped."""
        in_a_row = next(count for count in itertools.count() if self.weight_version - 1 - count not in self.skipped)
        if step.refused is not None and in_a_row >= self.max_skipped_steps:
            why = step.refused.sequences[0].cause if step.refused.sequences else step.refused.cause
            yield TrainingHalted(
                reason=(
                    f"{in_a_row} steps in a row changed no weight, the last because of this: {why}; "
                    "fix the cause, or raise trainer.max_skipped_steps"
                )
            )

    async def _evaluate_examples(self, source: SupervisedData, context: Context) -> AsyncIterator[LossEvaluated]:
        """Evaluate the current weights on held-out examples if an evaluation is due."""
        if sequences := await asyncio.to_thread(source.held_out_sequences, self.weight_version):
            metrics = example_metrics(
                await self.recovered.call(context, lambda engine: engine.evaluate(sequences)), sequences
            )
            examples = int(metrics.pop("examples"))
            yield LossEvaluated(weight_version=self.weight_version, examples=examples, metrics=metrics)

    # ------------------------------------------------------------ replays

    async def _catch_up(self, context: Context) -> AsyncIterator[TrainerProgress]:
        """Replay the steps that the engine lacks after a restart; usually none."""
        if self.engine is None and self.weight_version >= 0:
            async for phase in self.recovered.prepare():
                yield phase
            if self.examples is not None:
                engine = self.recovered.require()
                location = await asyncio.to_thread(engine.publish, self.weights_folder(engine.weight_version))
                await asyncio.to_thread(self.examples.begin, location.model)
        async for phase in self.recovered.catch_up(context):
            yield phase

    async def _take_again(self, event: StepInput, context: Context) -> Sequence[TrainingSequence]:
        if self.step_history.has(
            "sequences", event.step + 1, self.recovered.checksum_of(event, ())
        ):  # refused, for whatever cause
            await asyncio.to_thread(self.recovered.require().step, ())
            return ()
        sequences = await self._sequences(event, context)
        return (await asyncio.to_thread(self._step, self.recovered.require(), sequences, event.step)).sequences

    def status(self) -> dict[str, float | str]:
        """Current version and groups."""
        return {"weight_version": self.weight_version, "groups_trained": self.groups_trained}
