"""Every message of the system, in the order one sample meets them.

    CapacityGranted → RunEpisode → OpenSession → CallModel → Generate → ScoreEpisode → EpisodeScored
          ↑                                                                                     ↓
          └──────────── WeightsPublished ←── StepCompleted ←── BatchFormed ←── TrajectoryExported

An episode is named `<group>.<member>` and keeps its name when it is attempted again. Whoever hears that an episode
ended (exported, dropped, or abandoned with no attempts left) counts it once, by name.
"""

from __future__ import annotations

from areal_actors.messages.outcome import (
    EpisodeAbandoned,
    EpisodeEvaluated,
    EpisodeScored,
    ScoreEpisode,
    TrajectoryDropped,
    TrajectoryExported,
)
from areal_actors.messages.rollout import (
    CallModel,
    CapacityGranted,
    EvaluateEpisode,
    Generate,
    Generated,
    InteractionRecorded,
    ModelAnswered,
    OpenSession,
    Purpose,
    RewardSet,
    RunEpisode,
    SessionOpened,
    SetReward,
    TokenLogprob,
    ToolCallPart,
)
from areal_actors.messages.run import (
    ActorFailed,
    ActorStarted,
    ActorStopped,
    Heartbeat,
    RunFinished,
    RunResumed,
    RunStalled,
    RunStarted,
    RunStopping,
    Throughput,
    TrainerPhase,
    Wait,
)
from areal_actors.messages.session import (
    CapacityReserved,
    DescribeGateway,
    DescribeSession,
    EndSession,
    GatewayDescribed,
    GiveTrajectory,
    InteractionTold,
    Refusal,
    ReserveCapacity,
    SessionClosed,
    SessionDescribed,
    SessionGiven,
    SessionStarted,
    StartSession,
    TrajectoryGiven,
)
from areal_actors.messages.training import (
    BatchFormed,
    BestCheckpointChosen,
    CheckpointSaved,
    CheckpointWritten,
    EvaluationCompleted,
    ExamplesDrawn,
    ExamplesDropped,
    GroupsUsedUp,
    LossEvaluated,
    Member,
    SaveCheckpoint,
    StepCompleted,
    TrainingFellBack,
    WeightsLoaded,
    WeightsPublished,
)
from bus.message import Message

__all__ = [
    "KINDS",
    "ActorFailed",
    "ActorStarted",
    "ActorStopped",
    "BatchFormed",
    "BestCheckpointChosen",
    "CallModel",
    "CapacityGranted",
    "CapacityReserved",
    "CheckpointSaved",
    "CheckpointWritten",
    "DescribeGateway",
    "DescribeSession",
    "EndSession",
    "EpisodeAbandoned",
    "EpisodeEvaluated",
    "EpisodeScored",
    "EvaluateEpisode",
    "EvaluationCompleted",
    "ExamplesDrawn",
    "ExamplesDropped",
    "GatewayDescribed",
    "Generate",
    "Generated",
    "GiveTrajectory",
    "GroupsUsedUp",
    "Heartbeat",
    "InteractionRecorded",
    "InteractionTold",
    "LossEvaluated",
    "Member",
    "ModelAnswered",
    "OpenSession",
    "Purpose",
    "Refusal",
    "ReserveCapacity",
    "RewardSet",
    "RunEpisode",
    "RunFinished",
    "RunResumed",
    "RunStalled",
    "RunStarted",
    "RunStopping",
    "SaveCheckpoint",
    "ScoreEpisode",
    "SessionClosed",
    "SessionDescribed",
    "SessionGiven",
    "SessionOpened",
    "SessionStarted",
    "SetReward",
    "StartSession",
    "StepCompleted",
    "Throughput",
    "TokenLogprob",
    "ToolCallPart",
    "TrainerPhase",
    "TrainingFellBack",
    "TrajectoryDropped",
    "TrajectoryExported",
    "TrajectoryGiven",
    "Wait",
    "WeightsLoaded",
    "WeightsPublished",
]

KINDS: tuple[type[Message], ...] = tuple(
    kind for kind in list(globals().values()) if isinstance(kind, type) and issubclass(kind, Message) and hasattr(kind, "subject")
)
"""Every message type."""
