"""The run as a whole, and who in it is alive."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from areal_actors.values import Value
from bus.message import Event, Telemetry


class RunStarted(Event):
    """The run's processes are being started from this recipe."""

    subject: ClassVar[str] = "run.started"
    recipe: dict[str, Any]
    """The resolved recipe."""
    profile: str
    reason: str
    """Why this profile."""
    folder: str


class RunResumed(Event):
    """A run that had ended early goes on: its processes are being started anew and fold the log."""

    subject: ClassVar[str] = "run.resumed"
    recipe: dict[str, Any]
    """The resolved recipe from now on."""
    reason: str
    """Which settings are others than before; empty if none are."""
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
    """An actor has ended as it was asked to, or with its run."""

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
