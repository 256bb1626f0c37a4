"""State of a run: a fold over its events and telemetry, shared by the live view and the summary."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, Literal, get_type_hints

import msgspec

from areal_actors.display.sentences import FAULTS, refused_batch
from areal_actors.messages import (
    KINDS,
    ActorFailed,
    ActorStarted,
    ActorStopped,
    BatchRefused,
    BestCheckpointChosen,
    BusRestarted,
    CheckpointCommitted,
    CompletionRefused,
    EpisodeAbandoned,
    EvaluationCompleted,
    EventLoopBlocked,
    ExamplesDropped,
    FaultInjected,
    FilterExhausted,
    Heartbeat,
    LimitDecided,
    LoadMeasured,
    LogTrimmed,
    LossEvaluated,
    RunFinished,
    RunResumed,
    RunStalled,
    RunStarted,
    RunStopping,
    SnapshotRefused,
    StepCompleted,
    Throughput,
    TrainerProgress,
    TrainerRolledBack,
    TrainingHalted,
    TrajectoryDropped,
    TrajectoryExported,
    WeightsLoaded,
    WeightsPublished,
    WorkerJoined,
    WorkerLeft,
)
from areal_actors.messages.episode_ends import EpisodeCounts, is_failure
from areal_actors.rollout.blocked import merge_reports
from areal_bus.base import Envelope
from areal_bus.message import Message

STEPS_TIMED = 10
"""Number of last steps whose median duration gives the time left."""
THROUGHPUTS_KEPT = 400
LOADS_KEPT = 256
"""Maximum number of newest loads kept."""
CHECKPOINTS_KEPT = 64
"""Maximum number of newest checkpoints kept."""

_KINDS: dict[str, type[Message]] = {kind.subject: kind for kind in KINDS}


class CompletedStep(msgspec.Struct, frozen=True):
    """A completed step."""

    number: int
    time: float
    metrics: dict[str, float]


TELEMETRY = frozenset({"beats", "beaten_at", "throughputs", "telemetry_since"})
"""Fields of a `RunState` that come from telemetry: a snapshot has all others."""


@dataclass(eq=False)
class RunState:
    """Everything that is displayed about a run; unknown messages are ignored, missing metrics stay missing."""

    state_type: ClassVar[Any]
    state_version: ClassVar[int] = 5

    run: str = ""
    now: float = 0.0
    """Time of the latest message."""
    started: RunStarted | None = None
    started_at: float = 0.0
    finished: RunFinished | None = None
    stopping: str = ""
    """Reason why the run ends before its last step; empty otherwise."""
    stalled: RunStalled | None = None
    """Set until there is progress again."""
    steps: list[CompletedStep] = field(default_factory=list)
    evaluations: list[EvaluationCompleted] = field(default_factory=list)
    losses: list[LossEvaluated] = field(default_factory=list)
    examples_dropped: ExamplesDropped | None = None
    checkpoint: CheckpointCommitted | None = None
    checkpoints: list[CheckpointCommitted] = field(default_factory=list)
    """The newest checkpoints, one per step, in the order in which they were saved."""
    best_checkpoint: BestCheckpointChosen | None = None
    weight_version: int = -1
    loaded: dict[str, int] = field(default_factory=dict)
    """Weight version of each inference worker."""
    serving: dict[str, str] = field(default_factory=dict)
    """Process of each actor that serves its mailbox."""
    joined: int = 0
    """Remote workers that have joined so far."""
    members: dict[str, str] = field(default_factory=dict)
    """Host of each worker of another host that is part of the run."""
    episodes: EpisodeCounts = field(default_factory=EpisodeCounts)
    discarding: bool = False
    """True if trajectories were dropped since the last step: exported ones are then no progress."""
    last_failure: str = ""
    refused: Counter[str] = field(default_factory=Counter)
    """Completions refused by the gateway, by inference worker."""
    last_refused: str = ""
    refused_sequences: int = 0
    skipped_steps: int = 0
    """Rows that were left out of steps, and steps without an update."""
    last_refused_batch: str = ""
    blocked: dict[str, EventLoopBlocked] = field(default_factory=dict)
    """Blocked event loops by the agent's line: the longest block, with total seconds and count."""
    loads: list[LoadMeasured] = field(default_factory=list)
    """The newest loads, for the verdict on what limits the run."""
    limits: dict[str, int] = field(default_factory=dict)
    """Limits of the staleness gate that the run chose itself (`[autopilot]`), by setting."""
    actor_failures: Counter[str] = field(default_factory=Counter)
    bus_outages: list[BusRestarted] = field(default_factory=list)
    injected: Counter[str] = field(default_factory=Counter)
    """Faults of `[chaos]`, by kind and target."""
    trimmed: LogTrimmed | None = None
    """Last trimming of the beginning of the log."""
    beats: dict[str, Heartbeat] = field(default_factory=dict)
    beaten_at: dict[str, float] = field(default_factory=dict)
    """Time of each actor's last heartbeat."""
    throughputs: deque[Throughput] = field(default_factory=lambda: deque(maxlen=THROUGHPUTS_KEPT))
    telemetry_since: float = float("inf")
    """Time of the first telemetry: a monitor that attaches late has none from before."""

    def snapshot(self) -> Any:
        """Returns the state after the events so far, without telemetry."""
        return self.state_type(**{name: deepcopy(getattr(self, name)) for name in self.state_type.__struct_fields__})

    def restore(self, state: Any) -> None:
        """Continue from a snapshot."""
        for name in self.state_type.__struct_fields__:
            value = deepcopy(getattr(state, name))
            setattr(self, name, Counter(value) if isinstance(getattr(self, name), Counter) else value)

    def receive(self, envelope: Envelope, message: Message | None = None) -> Message | None:
        """Fold an event or telemetry, each once and events in order; returns it, or None for an unknown kind.

        `message`: what the envelope has, if it is decoded.

        Raises:
            CorruptMessage: the envelope is damaged.
        """
        if message is None:
            kind = _KINDS.get(envelope.subject)
            if kind is None:
                return None
            message = envelope.open(kind)
        self.run = envelope.run
        self.fold(message, envelope.time)
        return message

    def fold(self, message: Message, time: float) -> None:  # noqa: C901, PLR0912, PLR0915 - a table of one line each
        """Fold a message that was sent at this time (seconds since the epoch)."""
        self.now = max(self.now, time)
        is_first = self.episodes.receive(message)
        match message:
            case RunStarted():
                self.started, self.started_at = message, time
            case RunResumed():
                self._continue_resumed(message)
            case RunFinished():
                self.finished = message
            case RunStopping() | FilterExhausted() | TrainingHalted():
                self.stopping = self.stopping or message.reason
            case RunStalled():
                self.stalled = message
            case TrainerProgress():
                self.telemetry_since = min(self.telemetry_since, time)
            case StepCompleted():
                self._note_progress()
                self.discarding = False
                while self.steps and self.steps[-1].number >= message.step:  # a restarted trainer repeats steps
                    self.steps.pop()
                self.steps.append(CompletedStep(number=message.step, time=time, metrics=message.metrics))
            case EvaluationCompleted():
                self._note_progress()
                self.evaluations.append(message)
            case LossEvaluated():
                self._note_progress()
                self.losses.append(message)
            case ExamplesDropped():
                self.examples_dropped = message
            case CheckpointCommitted():
                self.checkpoint = message
                earlier = [saved for saved in self.checkpoints if saved.step != message.step]
                self.checkpoints = [*earlier, message][-CHECKPOINTS_KEPT:]
            case BestCheckpointChosen():
                self.best_checkpoint = message
            case WeightsPublished():
                self._note_progress()
                self.weight_version = message.weight_version
            case WeightsLoaded():
                self._note_progress()
                self.loaded[message.worker] = message.weight_version
            case TrajectoryExported():
                if not self.discarding:
                    self._note_progress()
            case TrajectoryDropped():
                self.discarding = True
            case EpisodeAbandoned() if is_first and is_failure(message):
                self.last_failure = f"{message.work.episode}: {message.detail}"
            case CompletionRefused():
                self.refused[message.worker] += 1
                self.last_refused = message.cause
            case BatchRefused():
                self.refused_sequences += len(message.sequences)
                self.skipped_steps += message.trained_sequences == 0
                self.last_refused_batch = refused_batch(message)
            case EventLoopBlocked():
                before_it = self.blocked.get(message.line)
                self.blocked[message.line] = merge_reports(before_it, message) if before_it else message
            case LoadMeasured():
                self.loads = [*self.loads, message][-LOADS_KEPT:]
            case LimitDecided():
                self.limits[message.setting] = message.value
            case ActorFailed():
                self._remove_actor(message.actor)
                self.actor_failures[f"{message.actor}: {message.reason}"] += 1
            case TrainerRolledBack():
                reason = message.reason.partition("\n")[0]
                self.actor_failures[f"trainer rolled back to step {message.weight_version}: {reason}"] += 1
            case BusRestarted():
                self.bus_outages.append(message)
            case ActorStopped():
                self._remove_actor(message.actor)
            case ActorStarted():
                self._note_progress()
                self.serving[message.actor] = message.process
            case WorkerJoined():
                self._note_progress()
                self.joined += 1
                self.members[message.worker] = message.host
            case WorkerLeft():
                self.members.pop(message.worker, None)
            case SnapshotRefused():
                self.actor_failures[f"{message.fold}: a snapshot was refused: {message.reason}"] += 1
            case LogTrimmed():
                self.trimmed = message
            case FaultInjected():
                self.injected[f"{message.kind} of {message.target}"] += 1
            case Heartbeat():
                self.telemetry_since = min(self.telemetry_since, time)
                self.beats[message.actor], self.beaten_at[message.actor] = message, time
            case Throughput():
                self.telemetry_since = min(self.telemetry_since, message.started)
                self.throughputs.append(message)
            case _ if described := FAULTS.get(type(message)):
                self.actor_failures[described(message)] += 1

    def _continue_resumed(self, event: RunResumed) -> None:
        """Continue with the resumed run's recipe."""
        self.stopping, self.finished, self.stalled = "", None, None
        if self.started is not None:
            self.started = msgspec.structs.replace(self.started, recipe=event.recipe, folder=event.folder)

    def _note_progress(self) -> None:
        self.stalled = None

    def _remove_actor(self, actor: str) -> None:
        self.beats.pop(actor, None)
        self.loaded.pop(actor, None)
        self.serving.pop(actor, None)

    # ------------------------------------------------------------ derived values

    def steps_wanted(self) -> int:
        """Returns the number of steps in the recipe; 0 while unknown."""
        return int(self.setting("steps") or 0)

    def learns_from_examples(self) -> bool:
        """Returns True if there are no episodes: losses are shown instead of rewards."""
        return bool(self.setting("actors", "example_source", "count"))

    def setting(self, *path: str) -> Any:
        """Returns a value of the resolved recipe, or None."""
        value: Any = self.started.recipe if self.started else {}
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def metric(self, name: str) -> float | None:
        """Returns a metric of the last step, or None."""
        return self.steps[-1].metrics.get(name) if self.steps else None

    def history(self, name: str) -> list[float]:
        """Returns the values of a metric over the steps that have it."""
        return [step.metrics[name] for step in self.steps if name in step.metrics]

    def accuracy(self, mode: Literal["sampled", "greedy"]) -> list[EvaluationCompleted]:
        """Returns the evaluations of this mode, oldest first."""
        return [evaluation for evaluation in self.evaluations if evaluation.mode == mode]

    def held_out_values(self, name: str) -> list[float]:
        """Returns the values of a metric on held-out examples, oldest first; empty if the algorithm has none."""
        return [measured.metrics[name] for measured in self.losses if name in measured.metrics]

    def seconds_per_step(self) -> float | None:
        """Returns the median duration of the last steps; None before the second."""
        times = [step.time for step in self.steps[-STEPS_TIMED - 1 :]]
        durations = [later - earlier for earlier, later in pairwise(times)]
        return statistics.median(durations) if durations else None

    def seconds_left(self) -> float | None:
        """Returns the estimated seconds until the last step; None while unknown."""
        pace = self.seconds_per_step()
        return (
            None
            if pace is None or not self.steps_wanted()
            else pace * max(self.steps_wanted() - self.steps[-1].number, 0)
        )

    def status(self, kind: str) -> dict[str, float | str]:
        """Returns the status of the first actor of this kind; empty before its first heartbeat."""
        return next((beat.status for actor, beat in sorted(self.beats.items()) if actor.startswith(kind)), {})

    def is_handling(self, kind: str, message: str = "") -> bool:
        """Returns True if an actor of this kind is handling a message of this type, or any."""
        handling = [
            name
            for actor, beat in self.beats.items()
            if actor.startswith(kind)
            for name, count in beat.handling.items()
            if count
        ]
        return message in handling if message else bool(handling)


RunState.state_type = msgspec.defstruct(
    "RunStateSnapshot",
    [
        (name, dict[str, int] if kind == Counter[str] else kind)
        for name, kind in get_type_hints(RunState).items()
        if name not in TELEMETRY | {"state_type", "state_version"}
    ],
    kw_only=True,
    frozen=True,
)
