"""Severity of notices."""

from __future__ import annotations

from typing import Literal

from areal_actors.messages import (
    ActorFailed,
    BatchRefused,
    BusRestarted,
    CheckpointDamaged,
    CompletionRefused,
    ConversationsLimited,
    DiskLow,
    EngineInexact,
    EngineLost,
    EngineMismatch,
    EventLoopBlocked,
    FilterExhausted,
    LogRecovered,
    RunFinished,
    RunStalled,
    SnapshotRefused,
    StepDiffered,
    ToolsRefused,
    TrainerRolledBack,
    TrainingHalted,
    WeightTransferRefused,
    WorkerLeft,
)
from areal_bus.message import Message

Severity = Literal["error", "warning", "info"]
ERRORS = (
    *(ActorFailed, BusRestarted, CheckpointDamaged, EngineLost, FilterExhausted, LogRecovered, RunStalled),
    *(ToolsRefused, TrainerRolledBack, TrainingHalted),
)
WARNINGS = (
    *(
        BatchRefused,
        CompletionRefused,
        ConversationsLimited,
        DiskLow,
        EngineInexact,
        EngineMismatch,
        EventLoopBlocked,
        SnapshotRefused,
    ),
    *(StepDiffered, WeightTransferRefused),
)


def severity_of(event: Message) -> Severity:
    """Returns the severity of an event: `error` for a failure, `warning` for what needs a look."""
    if isinstance(event, ERRORS) or (isinstance(event, RunFinished) and event.error):
        return "error"
    return "warning" if isinstance(event, WARNINGS) or (isinstance(event, WorkerLeft) and event.reason) else "info"
