"""The metrics actor: a listener that appends events to `metrics.jsonl`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from areal_actors import messages
from areal_actors.core.durable_files import append_line
from areal_actors.core.values import Value
from areal_actors.runtime.actor import Actor, Context, on


class Metrics(Actor):
    """Appends one line per event and flushes it.

    {"time", "kind", ...}, with the time of the event; a number that is not finite is null.
    """

    state_type = Value

    def __init__(self, path: Path) -> None:
        self.path = path

    def snapshot(self) -> Value:
        """Empty: past events are in the file."""
        return Value()

    @on
    def write(
        self,
        message: (
            messages.RunStarted
            | messages.StepCompleted
            | messages.EvaluationCompleted
            | messages.LossEvaluated
            | messages.CheckpointCommitted
            | messages.BestCheckpointChosen
            | messages.ExamplesDropped
            | messages.JudgeCalibrated
            | messages.FilterExhausted
            | messages.EpisodeAbandoned
            | messages.EventLoopBlocked
            | messages.CompletionRefused
            | messages.ToolsRefused
            | messages.ConversationsLimited
            | messages.CandidatePublished
            | messages.CandidateDecided
            | messages.BatchRefused
            | messages.TrainingHalted
            | messages.ActorFailed
            | messages.TrainerRolledBack
            | messages.WorkerJoined
            | messages.WorkerLeft
            | messages.BusRestarted
            | messages.EngineMismatch
            | messages.EngineLoad
            | messages.EngineInexact
            | messages.EngineLost
            | messages.WeightTransferRefused
            | messages.RunStalled
            | messages.RunForked
            | messages.RunResumed
            | messages.CheckpointDamaged
            | messages.StepDiffered
            | messages.DiskLow
            | messages.RunFinished
            | messages.ConcurrencyChanged
            | messages.SourcesChanged
            | messages.PoolsMeasured
            | messages.OffPolicyChanged
            | messages.LoadMeasured
            | messages.ScaleDecided
            | messages.LimitDecided
            | messages.Throughput
        ),
        context: Context,
    ) -> None:
        if not context.replayed:
            line = {"time": context.sent, "kind": message.subject, **msgspec.to_builtins(message)}
            append_line(self.path, msgspec.json.encode(line).decode())
