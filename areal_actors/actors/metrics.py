"""The metrics actor: a listener that appends events to `metrics.jsonl`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.actor import Actor, Turn, on
from areal_actors.durable_files import append_line
from areal_actors.messages import (
    ActorFailed,
    BatchRefused,
    BestCheckpointChosen,
    BusRestarted,
    CheckpointCommitted,
    CheckpointDamaged,
    CompletionRefused,
    DiskLow,
    EngineMismatch,
    EpisodeAbandoned,
    EvaluationCompleted,
    EventLoopBlocked,
    ExamplesDropped,
    FilterExhausted,
    LossEvaluated,
    RunFinished,
    RunResumed,
    RunStalled,
    RunStarted,
    StepCompleted,
    StepDiffered,
    Throughput,
    TrainerRolledBack,
    TrainingHalted,
)
from areal_actors.values import Value
from bus.message import Message


class Metrics(Actor):
    """Appends one line per event and flushes it: {"time", "kind", ...}; a number that is not finite is null."""

    state_type = Value

    def __init__(self, path: Path) -> None:
        self.path = path

    def snapshot(self) -> Value:
        """Empty: past events are in the file."""
        return Value()

    @on
    async def run_started(self, event: RunStarted, turn: Turn) -> None:
        self._write(event, turn)

    @on
    async def step_completed(self, event: StepCompleted, turn: Turn) -> None:
        self._write(event, turn)

    @on
    async def evaluation_completed(self, event: EvaluationCompleted, turn: Turn) -> None:
        self._write(event, turn)

    @on
    async def loss_evaluated(self, event: LossEvaluated, turn: Turn) -> None:
        self._write(event, turn)

    @on
    async def checkpoint_committed(self, event: CheckpointCommitted, turn: Turn) -> None:
        self._write(event, turn)

    @on
    async def best_checkpoint_chosen(self, event: BestCheckpointChosen, turn: Turn) -> None:
        self._write(event, turn)

    @on
    async def examples_dropped(self, event: ExamplesDropped, turn: Turn) -> None:
        self._write(event, turn)

    @on
    async def filter_exhausted(self, event: FilterExhausted, turn: Turn) -> None:
        self._write(event, turn)

    @on
    async def episode_abandoned(self, event: EpisodeAbandoned, turn: Turn) -> None:
        self._write(event, turn)

    @on
    async def event_loop_blocked(self, event: EventLoopBlocked, turn: Turn) -> None:
        self._write(event, turn)

    @on
    async def completion_refused(self, event: CompletionRefused, turn: Turn) -> None:
        self._write(event, turn)

    @on
    async def batch_refused(self, event: BatchRefused, turn: Turn) -> None:
        self._write(event, turn)

    @on
    async def training_halted(self, event: TrainingHalted, turn: Turn) -> None:
        self._write(event, turn)

    @on
    async def actor_failed(self, event: ActorFailed, turn: Turn) -> None:
        self._write(event, turn)

    @on
    async def trainer_rolled_back(self, event: TrainerRolledBack, turn: Turn) -> None:
        self._write(event, turn)

    @on
    async def bus_restarted(self, event: BusRestarted, turn: Turn) -> None:
        self._write(event, turn)

    @on
    async def engine_mismatch(self, event: EngineMismatch, turn: Turn) -> None:
        self._write(event, turn)

    @on
    async def run_stalled(self, event: RunStalled, turn: Turn) -> None:
        self._write(event, turn)

    @on
    async def run_resumed(self, event: RunResumed, turn: Turn) -> None:
        self._write(event, turn)

    @on
    async def checkpoint_damaged(self, event: CheckpointDamaged, turn: Turn) -> None:
        self._write(event, turn)

    @on
    async def step_differed(self, event: StepDiffered, turn: Turn) -> None:
        self._write(event, turn)

    @on
    async def disk_low(self, event: DiskLow, turn: Turn) -> None:
        self._write(event, turn)

    @on
    async def run_finished(self, event: RunFinished, turn: Turn) -> None:
        self._write(event, turn)

    @on
    async def throughput(self, telemetry: Throughput, turn: Turn) -> None:
        self._write(telemetry, turn)

    def _write(self, message: Message, turn: Turn) -> None:
        if turn.replayed:
            return
        line = {"time": turn.now, "kind": message.subject, **msgspec.to_builtins(message)}
        append_line(self.path, json.dumps(_finite(line), separators=(",", ":")))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
