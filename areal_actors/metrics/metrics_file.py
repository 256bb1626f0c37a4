"""The metrics actor: a listener that appends events to `metrics.jsonl`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.core.durable_files import append_line
from areal_actors.core.values import Value
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
from areal_actors.runtime.actor import Actor, Context, on


class Metrics(Actor):
    """Appends one line per event and flushes it: {"time", "kind", ...}; a number that is not finite is null."""

    state_type = Value

    def __init__(self, path: Path) -> None:
        self.path = path

    def snapshot(self) -> Value:
        """Empty: past events are in the file."""
        return Value()

    @on
    def write(
        self,
        message: RunStarted
        | StepCompleted
        | EvaluationCompleted
        | LossEvaluated
        | CheckpointCommitted
        | BestCheckpointChosen
        | ExamplesDropped
        | FilterExhausted
        | EpisodeAbandoned
        | EventLoopBlocked
        | CompletionRefused
        | BatchRefused
        | TrainingHalted
        | ActorFailed
        | TrainerRolledBack
        | BusRestarted
        | EngineMismatch
        | RunStalled
        | RunResumed
        | CheckpointDamaged
        | StepDiffered
        | DiskLow
        | RunFinished
        | Throughput,
        context: Context,
    ) -> None:
        if context.replayed:
            return
        line = {"time": context.now, "kind": message.subject, **msgspec.to_builtins(message)}
        append_line(self.path, json.dumps(_finite(line), separators=(",", ":")))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
