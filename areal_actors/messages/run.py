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
    """Where it began, as the recipe names it; the folder may have been moved since."""


class RunResumed(Event):
    """A run that had ended early goes on: its processes are being started anew and fold the log."""

    subject: ClassVar[str] = "run.resumed"
    recipe: dict[str, Any]
    """The resolved recipe from now on."""
    reason: str
    """Which settings are others than before; empty if none are."""
    folder: str
    from_step: int = -1
    """Checkpoints of later steps are not used: the run goes back to this one; -1 for the newest."""
    queued: dict[str, int] | None = None
    """The attempts that wait in the queue of work, by episode; None if nobody has looked."""
    published: dict[str, int] = {}
    """Up to which event actors that answer with episodes had published what follows from it, by kind."""


class DiskLow(Event):
    """The disk that the run's folder lies on is nearly full; below `needed_bytes` the run saves a checkpoint and ends."""

    subject: ClassVar[str] = "disk.low"
    free_bytes: int
    needed_bytes: int
    reason: str


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


class EventLoopBlocked(Event):
    """Agents that share an event loop waited while one of them computed or slept in it."""

    subject: ClassVar[str] = "loop.blocked"
    seconds: float
    line: str = ""
    """Of the agent's own code, such as `agent.py:7`: where the loop was seen most often; empty when it was not seen."""
    innermost: str = ""
    """What that line had called, such as `ssl.py:713 in load_default_certs`."""
    episode: str = ""
    """That ran this line for longest; empty when it is not known."""
    episodes: int = 1
    """How many were seen at this line."""
    times: int = 1
    """How many stretches these seconds are the sum of."""


class BusRestarted(Event):
    """nats-server had died or did not answer, and was started again on its store: everything in the log is still there."""

    subject: ClassVar[str] = "bus.restarted"
    reason: str
    seconds: float
    """From when it was last known to answer until it took connections again."""
    restarts: int
    """Of this life of the run."""


class LogRecovered(Event):
    """The log had a hole, or ended before what had been read from it: the run goes on from the good part, which ends before this."""

    subject: ClassVar[str] = "log.recovered"
    damage: str
    """What was found, and where."""
    lost: int
    """Events behind the good part, as the server counted them; they may have been more."""
    set_aside: tuple[str, ...] = ()
    """What is no longer used: the damaged store, and checkpoints of steps that the log does not have, under these names."""


class FaultInjected(Event):
    """`[chaos]` of the recipe does this to the run, a moment after the event."""

    subject: ClassVar[str] = "fault.injected"
    kind: str
    """`kill`, `pause`, `partition`, `flip`, `slow_disk` or `bad_completion`."""
    target: str
    """The process or file, `server` or `everything`."""
    detail: str
    """What is done, in words."""


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


class SnapshotStored(Event):
    """The state of a fold over the log is on disk: its next start folds only the events after this place."""

    subject: ClassVar[str] = "snapshot.stored"
    fold: str
    """Name of the actor, or of another reader that folds the log."""
    after: int
    """Sequence of the last event in the state."""
    size: int
    """Bytes of the state."""


class SnapshotRefused(Event):
    """A snapshot could not be used: it is damaged, or of another version of the program or another log."""

    subject: ClassVar[str] = "snapshot.refused"
    fold: str
    reason: str
    restored: int
    """Sequence of the last event in the earlier snapshot that was restored instead; 0 when the fold begins with the first event."""


class LogTrimmed(Event):
    """Events that neither a kept checkpoint nor a snapshot needs are removed from the beginning of the log."""

    subject: ClassVar[str] = "log.trimmed"
    first: int
    """Sequence of the first event that stays."""
    step: int
    """Of the oldest checkpoint that the log can go on from."""
    removed: int
    """Events removed now."""


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


class WatchProbe(Telemetry):
    """Published by the supervisor and received by itself: while probes come back, a process without heartbeats is itself silent."""

    subject: ClassVar[str] = "watch.probe"
    number: int
