"""Every message of the system, in the order one sample meets them.

    CapacityGranted → RunEpisode → OpenSession → CompleteChat → Generate → ScoreEpisode → EpisodeScored
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
    CapacityGranted,
    ChatCompleted,
    CompleteChat,
    Generate,
    Generated,
    InteractionRecorded,
    OpenSession,
    Purpose,
    RewardSet,
    RunEpisode,
    SessionOpened,
    SetReward,
)
from areal_actors.messages.run import (
    ActorFailed,
    ActorStarted,
    ActorStopped,
    Heartbeat,
    RunFinished,
    RunStalled,
    RunStarted,
    RunStopping,
    Throughput,
    TrainerPhase,
    Wait,
)
from areal_actors.messages.training import (
    BatchFormed,
    CheckpointSaved,
    CheckpointWritten,
    EvaluationCompleted,
    Member,
    SaveCheckpoint,
    StepCompleted,
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
    "CapacityGranted",
    "ChatCompleted",
    "CheckpointSaved",
    "CheckpointWritten",
    "CompleteChat",
    "EpisodeAbandoned",
    "EpisodeEvaluated",
    "EpisodeScored",
    "EvaluationCompleted",
    "Generate",
    "Generated",
    "Heartbeat",
    "InteractionRecorded",
    "Member",
    "OpenSession",
    "Purpose",
    "RewardSet",
    "RunEpisode",
    "RunFinished",
    "RunStalled",
    "RunStarted",
    "RunStopping",
    "SaveCheckpoint",
    "ScoreEpisode",
    "SessionOpened",
    "SetReward",
    "StepCompleted",
    "Throughput",
    "TrainerPhase",
    "TrajectoryDropped",
    "TrajectoryExported",
    "Wait",
    "WeightsLoaded",
    "WeightsPublished",
]

KINDS: tuple[type[Message], ...] = tuple(
    kind for kind in list(globals().values()) if isinstance(kind, type) and issubclass(kind, Message) and hasattr(kind, "subject")
)
"""Every message type."""
