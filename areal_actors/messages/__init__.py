"""All messages, in the order of one sample's path.

    CapacityGranted → RunEpisode → OpenSession → ModelRequest → Generate → ScoreEpisode → EpisodeScored
          ↑                                                                                     ↓
          └──────────── WeightsPublished ←── StepCompleted ←── BatchFormed ←── TrajectoryExported

An episode is named `<group>.<member>` and keeps its name when it is retried. Receivers count the end of an episode
(exported, dropped, or abandoned with no attempts left) once, by name.
"""

from __future__ import annotations

from areal_actors.core.product import PRODUCT
from areal_actors.messages.candidates import (
    AnswerInShadow,
    CandidateDecided,
    CandidatePublished,
    ComparedMetric,
    Decision,
    ShadowAnswered,
    ShadowEnded,
)
from areal_actors.messages.client_traces import ClientTrace
from areal_actors.messages.conversations import ConversationKept, ConversationsLimited
from areal_actors.messages.draws import PoolsMeasured, SourcesChanged
from areal_actors.messages.engines import (
    EngineInexact,
    EngineLoad,
    EngineLost,
    EngineMismatch,
    EngineSlept,
    EngineStarting,
    LoadLevel,
    MemoryReleased,
    ReleaseMemory,
    WeightsLoaded,
    WeightTransferRefused,
)
from areal_actors.messages.feedback import (
    EraseSessions,
    ErasureRecorded,
    FeedbackGiven,
    FeedbackRecorded,
    GiveFeedback,
    SessionsErased,
)
from areal_actors.messages.generation import Generate, Generated
from areal_actors.messages.joining import (
    GatewayKeys,
    JoinAnswer,
    JoinRun,
    LeaseRenewed,
    LeaveRun,
    Objects,
    RenewLease,
    WorkerJoined,
    WorkerLeft,
)
from areal_actors.messages.outcome import (
    AgentReturned,
    EpisodeAbandoned,
    EpisodeEvaluated,
    EpisodeScored,
    JudgeAnswer,
    JudgeCalibrated,
    ScoreEpisode,
    TrajectoryDropped,
    TrajectoryExported,
    recorded_calls,
)
from areal_actors.messages.policies import EndPolicySession, OpenPolicySession
from areal_actors.messages.rollout import (
    ITEM_REFERENCE,
    CapacityGranted,
    CompletionRefused,
    ConcurrencyChanged,
    Continues,
    EvaluateEpisode,
    InteractionRecorded,
    InteractionsRecorded,
    ModelRequest,
    ModelResponsePart,
    OffPolicyChanged,
    OpenSession,
    Purpose,
    RewardSet,
    RunEpisode,
    SessionOpened,
    SetReward,
    TokenLogprob,
    ToolCallPart,
    ToolsRefused,
)
from areal_actors.messages.run import (
    ActorFailed,
    ActorStarted,
    ActorStopped,
    BusRestarted,
    DiskLow,
    EventLoopBlocked,
    FaultInjected,
    Heartbeat,
    LogRecovered,
    LogTrimmed,
    RunFinished,
    RunForked,
    RunResumed,
    RunStalled,
    RunStarted,
    RunStopping,
    SnapshotRefused,
    SnapshotsDue,
    SnapshotStored,
    Throughput,
    TrainerProgress,
    Wait,
    WatchProbe,
)
from areal_actors.messages.scaling import LimitDecided, LoadMeasured, RoleLoad, ScaleDecided
from areal_actors.messages.session import (
    CapacityReserved,
    DescribeGateway,
    DescribeSession,
    EndSession,
    GatewayDescribed,
    GetInteraction,
    GetTrajectory,
    InteractionSummary,
    InteractionTokens,
    OpenCall,
    Refusal,
    ReserveCapacity,
    SelectTrained,
    SessionClosed,
    SessionCreated,
    SessionDescribed,
    SessionStarted,
    StartSession,
    TrainedSelected,
    TrajectoryReply,
)
from areal_actors.messages.training import (
    BatchFormed,
    BatchRefused,
    BestCheckpointChosen,
    CheckpointCommitted,
    CheckpointDamaged,
    CheckpointStaged,
    EvaluationCompleted,
    ExamplesDrawn,
    ExamplesDropped,
    FilterExhausted,
    LossEvaluated,
    RefusedSequence,
    SaveCheckpoint,
    StepCompleted,
    StepDiffered,
    TrainerRolledBack,
    TrainingHalted,
    TrajectoryRef,
    WeightsPublished,
)
from areal_bus.message import Message

KINDS: tuple[type[Message], ...] = tuple(
    kind
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, Message) and hasattr(kind, "subject")
)
"""Every message type."""
