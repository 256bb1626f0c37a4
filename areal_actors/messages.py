"""Every message of the system, in the order one sample meets them.

    CapacityGranted → RunEpisode → OpenSession → CompleteChat → Generate → ScoreEpisode → EpisodeScored
          ↑                                                                                     ↓
          └──────────── WeightsPublished ←── StepCompleted ←── BatchFormed ←── TrajectoryExported

An episode is named `<group>.<member>` and keeps its name when it is attempted again. Whoever hears that an episode
ended (exported, dropped, or abandoned with no attempts left) counts it once, by name.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from areal_actors.values import (
    SamplingParams,
    Task,
    TokenColumns,
    Trajectory,
    Value,
    WeightsLocation,
)
from bus.message import Event, Message, Reply, Request, Telemetry, Work

Purpose = Literal["train", "evaluate"]

# ---------------------------------------------------------------- the run


class RunStarted(Event):
    """The run's processes are being started from this recipe."""

    subject: ClassVar[str] = "run.started"
    recipe: dict[str, Any]
    """The resolved recipe."""
    profile: str
    reason: str
    """Why this profile."""
    folder: str


class RunStopping(Event):
    """The run is asked to end early: the trainer saves what it has."""

    subject: ClassVar[str] = "run.stopping"
    reason: str


class RunStalled(Event):
    """Nothing has moved for a while; says who waits for whom, since when, and which bound binds."""

    subject: ClassVar[str] = "run.stalled"
    sentence: str
    seconds: float


class RunFinished(Event):
    """The run is over; `error` is empty when it did what the recipe asked."""

    subject: ClassVar[str] = "run.finished"
    steps: int
    error: str = ""


# ---------------------------------------------------------------- from capacity to tokens


class CapacityGranted(Event):
    """The staleness gate lets these groups start: numbers first_group to first_group + groups - 1."""

    subject: ClassVar[str] = "capacity.granted"
    first_group: int
    groups: int
    weight_version: int


class RunEpisode(Work):
    """Run the agent once on this task."""

    subject: ClassVar[str] = "episode.run"
    episode: str
    group: str
    attempt: int = 1
    attempts_left: int = 0
    """How often the episode may be tried again if it is abandoned."""
    task: Task
    purpose: Purpose = "train"
    sampling: SamplingParams


class SessionOpened(Reply):
    """The gateway serves the session at this address with this key; `refused` says why not."""

    subject: ClassVar[str] = "session.opened"
    session: str = ""
    base_url: str = ""
    api_key: str = ""
    refused: str = ""


class OpenSession(Request[SessionOpened]):
    """Keep a record of the model calls of this attempt at an episode, in place of any earlier attempt's."""

    subject: ClassVar[str] = "session.open"
    reply: ClassVar[type[Reply]] = SessionOpened
    work: RunEpisode
    lease_seconds: float


class ChatCompleted(Reply):
    """A part of the model's answer; the last part has a finish reason or an error."""

    subject: ClassVar[str] = "chat.completed"
    interaction: str = ""
    text: str = ""
    finish_reason: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    error: str = ""
    error_status: int = 0
    """HTTP status that says whose fault the error is."""
    error_field: str = ""

    def is_last(self) -> bool:
        """The last part says how the answer ended."""
        return bool(self.finish_reason or self.error)


class CompleteChat(Request[ChatCompleted]):
    """Answer these chat messages as the model being trained would, and record the interaction."""

    subject: ClassVar[str] = "chat.complete"
    reply: ClassVar[type[Reply]] = ChatCompleted
    session: str
    messages: tuple[dict[str, Any], ...]
    options: dict[str, Any] = {}
    """Sampling parameters that the request states; the session's own hold for the rest."""
    stream: bool = False


class RewardSet(Reply):
    """The reward is noted; `error` says why not."""

    subject: ClassVar[str] = "reward.noted"
    error: str = ""
    error_status: int = 0


class SetReward(Request[RewardSet]):
    """The agent itself says what an interaction was worth; an empty id is the last completed one."""

    subject: ClassVar[str] = "reward.set"
    reply: ClassVar[type[Reply]] = RewardSet
    session: str
    interaction: str = ""
    reward: float


class Generated(Reply):
    """The next tokens of a completion; the last part has a finish reason or an error."""

    subject: ClassVar[str] = "tokens.generated"
    columns: TokenColumns = TokenColumns()
    text: str = ""
    finish_reason: str = ""
    error: str = ""
    error_field: str = ""
    """Names the field when the request was wrong; empty when the engine failed."""

    def is_last(self) -> bool:
        """The last part says how the completion ended."""
        return bool(self.finish_reason or self.error)


class Generate(Request[Generated]):
    """Continue these tokens."""

    subject: ClassVar[str] = "tokens.generate"
    reply: ClassVar[type[Reply]] = Generated
    prompt_ids: bytes
    sampling: SamplingParams
    stream: bool = False


class InteractionRecorded(Event):
    """A model call of an episode is complete."""

    subject: ClassVar[str] = "interaction.recorded"
    session: str
    episode: str
    interaction: str
    parent: str = ""
    split: str = ""
    """Why the prompt does not continue an earlier interaction's tokens although its messages do; empty otherwise."""
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    weight_version: int
    """Of the last token."""
    purpose: Purpose = "train"


# ---------------------------------------------------------------- from tokens to a trajectory


class ScoreEpisode(Work):
    """The agent has returned text; say how good it was."""

    subject: ClassVar[str] = "episode.score"
    work: RunEpisode
    session: str
    output: str


class EpisodeScored(Event):
    """What an episode was worth, from the reward worker or from the agent itself."""

    subject: ClassVar[str] = "episode.scored"
    work: RunEpisode
    session: str
    reward: float | None = None
    """For the last completed interaction; None when the agent has set rewards itself."""
    rewards: dict[str, float] = {}
    """By interaction id."""
    output: str = ""


class EpisodeAbandoned(Event):
    """The attempt ended without a trajectory; nothing of it will be trained."""

    subject: ClassVar[str] = "episode.abandoned"
    work: RunEpisode
    reason: str
    """`agent`, `timeout`, `reward`, `engine`, `session`, `lost`: whose fault."""
    detail: str


class EpisodeEvaluated(Event):
    """A held-out episode is scored."""

    subject: ClassVar[str] = "episode.evaluated"
    work: RunEpisode
    reward: float
    output: str
    completion_tokens: int


class TrajectoryExported(Event):
    """A scored episode, ready to be trained on."""

    subject: ClassVar[str] = "trajectory.exported"
    trajectory: Trajectory


class TrajectoryDropped(Event):
    """An exported trajectory that will not be trained."""

    subject: ClassVar[str] = "trajectory.dropped"
    episode: str
    group: str
    reason: str
    """`stale`, or `incomplete group`."""


# ---------------------------------------------------------------- from trajectories to weights


class Member(Value):
    """One trajectory of a batch."""

    episode: str
    sequence: int
    """Position of its `TrajectoryExported` in the log."""


class BatchFormed(Event):
    """The truth of what a step trains: whole groups, oldest first, each trajectory by its place in the log."""

    subject: ClassVar[str] = "batch.formed"
    step: int
    """Counted from 0: the weight version that the trainer has when it trains this batch."""
    groups: tuple[tuple[Member, ...], ...]
    oldest_version: int
    """Tokens older than this weight version are masked out of the loss."""
    generated_trajectories: int
    """Exported since the run began, trained or not."""
    generated_tokens: int
    dropped_tokens: int
    """Sampled, exported and never trained, since the run began."""

    def group_numbers(self) -> tuple[int, ...]:
        """The number of each group, read from its episodes' names."""
        return tuple(int(group[0].episode.partition(".")[0]) for group in self.groups)


class StepCompleted(Event):
    """The optimizer has taken a step."""

    subject: ClassVar[str] = "step.completed"
    step: int
    """Counted from 1."""
    metrics: dict[str, float]
    rows_checksum: str
    """Of the sampled ids and log-probabilities that the loss was given, in row order."""


class WeightsPublished(Event):
    """New weights can be loaded; tokens sampled from now on should carry this version."""

    subject: ClassVar[str] = "weights.published"
    weight_version: int
    location: WeightsLocation
    groups_consumed: int
    """Groups trained into these weights since the run began."""


class WeightsLoaded(Event):
    """An inference worker generates with these weights from now on."""

    subject: ClassVar[str] = "weights.loaded"
    worker: str
    weight_version: int
    checksum: str


class EvaluationCompleted(Event):
    """Accuracy on held-out tasks."""

    subject: ClassVar[str] = "evaluation.completed"
    weight_version: int
    mode: Literal["sampled", "greedy"]
    tasks: int
    failed: int
    """Episodes that ended without a score; they count in neither direction."""
    accuracy: float
    mean_tokens: float
    worked_share: float
    """Share of answers that show at least one worked step."""
    samples: tuple[dict[str, Any], ...] = ()
    """A few tasks with the answers given."""


# ---------------------------------------------------------------- checkpoints


class SaveCheckpoint(Work):
    """Write a checkpoint of the trainer's present state to this folder."""

    subject: ClassVar[str] = "checkpoint.save"
    folder: str
    reason: str


class CheckpointWritten(Event):
    """The trainer has written a checkpoint that is not yet in its final place."""

    subject: ClassVar[str] = "checkpoint.written"
    folder: str
    step: int
    cursor: int
    """Sequence of the last `BatchFormed` that these weights have been trained on."""


class CheckpointSaved(Event):
    """A checkpoint is complete, synced to disk and under its final name."""

    subject: ClassVar[str] = "checkpoint.saved"
    folder: str
    step: int
    cursor: int


# ---------------------------------------------------------------- who is alive


class ActorStarted(Event):
    """An actor's process serves its mailbox."""

    subject: ClassVar[str] = "actor.started"
    actor: str
    process: str
    pid: int


class ActorFailed(Event):
    """An actor is gone; the supervisor starts a fresh one while the restart budget lasts."""

    subject: ClassVar[str] = "actor.failed"
    actor: str
    process: str
    reason: str


class ActorStopped(Event):
    """An actor has ended as it was asked to."""

    subject: ClassVar[str] = "actor.stopped"
    actor: str
    process: str


class Wait(Value):
    """Something an actor is waiting for."""

    name: str
    """What for and whom: `Generate from inference_worker-0`."""
    since: float
    """Seconds since the epoch."""
    deadline: float
    """Seconds since the epoch; 0 when the wait is for work to arrive."""


class Heartbeat(Telemetry):
    """An actor is alive; what it is doing and what it waits for."""

    subject: ClassVar[str] = "actor.heartbeat"
    actor: str
    process: str
    pid: int
    handling: dict[str, int]
    """Messages in hand, by type."""
    waits: tuple[Wait, ...]
    """The longest waits, oldest first."""
    status: dict[str, float | str]
    """What the actor says of itself, in its own words."""
    cpu_seconds: float
    peak_memory_bytes: int


class Throughput(Telemetry):
    """Tokens through an engine in a stretch of time."""

    subject: ClassVar[str] = "engine.throughput"
    actor: str
    side: Literal["generation", "training"]
    tokens: int
    started: float
    """Seconds since the epoch."""
    seconds: float
    concurrent: int = 0


class TrainerPhase(Telemetry):
    """What the trainer is doing between messages: preparing a model, or warming it up by SFT."""

    subject: ClassVar[str] = "trainer.phase"
    phase: str
    done: int = 0
    total: int = 0
    metrics: dict[str, float] = {}


KINDS: tuple[type[Message], ...] = tuple(
    kind for kind in list(globals().values()) if isinstance(kind, type) and issubclass(kind, Message) and hasattr(kind, "subject")
)
"""Every message type, in the order of this file."""
