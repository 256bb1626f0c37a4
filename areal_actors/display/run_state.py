"""What a run has come to: a fold over its events and telemetry, shared by the live view and the summary at the end."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from itertools import pairwise
from typing import Any, Literal

import msgspec

from areal_actors.messages import (
    KINDS,
    ActorFailed,
    ActorStarted,
    ActorStopped,
    BatchRefused,
    BestCheckpointChosen,
    CheckpointSaved,
    CompletionRefused,
    EngineMismatch,
    EpisodeAbandoned,
    EvaluationCompleted,
    ExamplesDropped,
    GroupsUsedUp,
    Heartbeat,
    LossEvaluated,
    RunFinished,
    RunResumed,
    RunStalled,
    RunStarted,
    RunStopping,
    StepCompleted,
    Throughput,
    TrainerPhase,
    TrainingFellBack,
    TrainingHalted,
    TrajectoryDropped,
    TrajectoryExported,
    WeightsLoaded,
    WeightsPublished,
)
from bus.base import Envelope
from bus.message import Message

STEPS_TIMED = 10
"""The last steps, whose median duration gives the time left."""
THROUGHPUTS_KEPT = 400

_KINDS: dict[str, type[Message]] = {kind.subject: kind for kind in KINDS}


class Step(msgspec.Struct, frozen=True):
    """A step that was completed, and when."""

    number: int
    time: float
    metrics: dict[str, float]


def refused_batch(event: BatchRefused) -> str:
    """The first cause in a batch, and how many rows share its fate."""
    if event.cause:
        return f"step {event.step + 1}: {event.cause}"
    first = event.rows[0]
    place = f"row {first.row} of episode {first.episode}" if first.row >= 0 else f"episode {first.episode}"
    return f"step {event.step + 1}: {place}: {first.cause}"


class RunState:
    """Everything that a person is told about a run; unknown messages are passed over, missing metrics stay missing."""

    def __init__(self) -> None:
        self.run = ""
        self.now = 0.0
        """The time of the latest message heard."""
        self.started: RunStarted | None = None
        self.started_at = 0.0
        self.finished: RunFinished | None = None
        self.stopping = ""
        """Why the run is to end before its last step; empty while it is not."""
        self.stalled: RunStalled | None = None
        """Set until something moves again."""
        self.phase: TrainerPhase | None = None
        """What the trainer prepares, until there are weights."""
        self.steps: list[Step] = []
        self.evaluations: list[EvaluationCompleted] = []
        self.losses: list[LossEvaluated] = []
        self.examples_dropped: ExamplesDropped | None = None
        self.checkpoint: CheckpointSaved | None = None
        self.best_checkpoint: BestCheckpointChosen | None = None
        self.weight_version = -1
        self.loaded: dict[str, int] = {}
        """The weight version of each inference worker."""
        self.exported = 0
        self.dropped: Counter[str] = Counter()
        self.abandoned: Counter[str] = Counter()
        """Attempts that failed, by reason."""
        self.given_up = 0
        """Episodes with no attempt left."""
        self.last_failure = ""
        self.refused: Counter[str] = Counter()
        """Completions that the gateway has refused, by inference worker."""
        self.last_refused = ""
        self.refused_rows = self.skipped_steps = 0
        """Rows that were left out of steps, and steps that changed no weight."""
        self.last_refused_batch = ""
        self.actor_failures: Counter[str] = Counter()
        self.beats: dict[str, Heartbeat] = {}
        self.throughputs: deque[Throughput] = deque(maxlen=THROUGHPUTS_KEPT)

    def heard(self, envelope: Envelope) -> Message | None:
        """Take in an event or telemetry, each once and events in order; returns it, or None where its kind is not known here.

        Raises:
            CorruptMessage: the envelope is damaged.
        """
        kind = _KINDS.get(envelope.subject)
        if kind is None:
            return None
        message = envelope.open(kind)
        self.run, self.now = envelope.run, max(self.now, envelope.time)
        self._fold(message, envelope.time)
        return message

    def _fold(self, message: Message, time: float) -> None:  # noqa: C901, PLR0912, PLR0915 - a table of one line each
        match message:
            case RunStarted():
                self.started, self.started_at = message, time
            case RunResumed():
                self._resumed(message)
            case RunFinished():
                self.finished = message
            case RunStopping() | GroupsUsedUp() | TrainingHalted():
                self.stopping = self.stopping or message.reason
            case RunStalled():
                self.stalled = message
            case TrainerPhase():
                self.phase = message
            case StepCompleted():
                self._moved()
                before = [step for step in self.steps if step.number < message.step]  # a restarted trainer repeats steps
                self.steps = [*before, Step(number=message.step, time=time, metrics=message.metrics)]
            case EvaluationCompleted():
                self._moved()
                self.evaluations.append(message)
            case LossEvaluated():
                self._moved()
                self.losses.append(message)
            case ExamplesDropped():
                self.examples_dropped = message
            case CheckpointSaved():
                self.checkpoint = message
            case BestCheckpointChosen():
                self.best_checkpoint = message
            case WeightsPublished():
                self._moved()
                self.phase, self.weight_version = None, message.weight_version
            case WeightsLoaded():
                self._moved()
                self.loaded[message.worker] = message.weight_version
            case TrajectoryExported():
                self._moved()
                self.exported += 1
            case TrajectoryDropped():
                self.dropped[message.reason] += 1
            case EpisodeAbandoned():
                self.abandoned[message.reason] += 1
                self.given_up += message.work.attempts_left == 0
                self.last_failure = f"{message.work.episode}: {message.detail}"
            case CompletionRefused():
                self.refused[message.worker] += 1
                self.last_refused = message.cause
            case BatchRefused():
                self.refused_rows += len(message.rows)
                self.skipped_steps += message.trained_rows == 0
                self.last_refused_batch = refused_batch(message)
            case ActorFailed():
                self._gone(message.actor)
                self.actor_failures[f"{message.actor}: {message.reason}"] += 1
            case TrainingFellBack():
                reason = message.reason.partition("\n")[0]
                self.actor_failures[f"trainer fell back to step {message.weight_version}: {reason}"] += 1
            case EngineMismatch():
                self.actor_failures[f"engine mismatch: {mismatch(message)}"] += 1
            case ActorStopped():
                self._gone(message.actor)
            case ActorStarted():
                self._moved()
            case Heartbeat():
                self.beats[message.actor] = message
            case Throughput():
                self.throughputs.append(message)

    def _resumed(self, event: RunResumed) -> None:
        """Go on with what is to be reached now."""
        self.stopping, self.finished, self.stalled = "", None, None
        if self.started is not None:
            self.started = msgspec.structs.replace(self.started, recipe=event.recipe, folder=event.folder)

    def _moved(self) -> None:
        self.stalled = None

    def _gone(self, actor: str) -> None:
        self.beats.pop(actor, None)
        self.loaded.pop(actor, None)

    # ------------------------------------------------------------ what follows from it

    def steps_wanted(self) -> int:
        """The steps that the recipe asks for; 0 while it is not known."""
        return int(self.setting("steps") or 0)

    def learns_from_examples(self) -> bool:
        """Whether there are no episodes: losses are shown where other runs show rewards."""
        return bool(self.setting("actors", "example_source", "count"))

    def setting(self, *path: str) -> Any:
        """A value of the resolved recipe, or None."""
        value: Any = self.started.recipe if self.started else {}
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def metric(self, name: str) -> float | None:
        """A metric of the last step, if it has it."""
        return self.steps[-1].metrics.get(name) if self.steps else None

    def history(self, name: str) -> list[float]:
        """A metric over the steps that have it."""
        return [step.metrics[name] for step in self.steps if name in step.metrics]

    def accuracy(self, mode: Literal["sampled", "greedy"]) -> list[EvaluationCompleted]:
        """The evaluations of this mode, oldest first."""
        return [evaluation for evaluation in self.evaluations if evaluation.mode == mode]

    def held_out(self, name: str) -> list[float]:
        """What was measured on held-out examples, oldest first; empty where the algorithm does not measure it."""
        return [measured.metrics[name] for measured in self.losses if name in measured.metrics]

    def seconds_per_step(self) -> float | None:
        """The median over the last steps; None before the second."""
        times = [step.time for step in self.steps[-STEPS_TIMED - 1 :]]
        durations = [later - earlier for earlier, later in pairwise(times)]
        return statistics.median(durations) if durations else None

    def seconds_left(self) -> float | None:
        """Until the last step, if the run goes on as it does."""
        pace = self.seconds_per_step()
        return None if pace is None or not self.steps_wanted() else pace * max(self.steps_wanted() - self.steps[-1].number, 0)

    def status(self, kind: str) -> dict[str, float | str]:
        """What the first actor of this kind says of itself; empty before its first heartbeat."""
        return next((beat.status for actor, beat in sorted(self.beats.items()) if actor.startswith(kind)), {})

    def in_hand(self, kind: str) -> int:
        """Messages that the actors of this kind are handling."""
        return sum(sum(beat.handling.values()) for actor, beat in self.beats.items() if actor.startswith(kind))


def mismatch(event: EngineMismatch) -> str:
    """Which worker disagrees with the trainer, by how much, where most, and what is done about it."""
    worker = event.worker or "an inference worker (which one is not recorded)"
    vetoed = f" and {event.vetoed_share:.1%} of tokens vetoed" if event.vetoed_share else ""
    done = "its engine is recycled" if event.recycle else "nothing is done about it"
    return (
        f"{worker}: KL {event.kl:.3g} nats per token{vetoed}, {event.steps} steps in a row, worst token {event.token} of episode "
        f"{event.episode} (engine {event.recorded_logprob:.3f}, trainer {event.trainer_logprob:.3f}); {done}"
    )
