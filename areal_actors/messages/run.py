"""Messages about the run as a whole, and the state of its actors."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar, Literal

from areal_actors.core.values import Value
from areal_bus.message import Event, Telemetry

IMPORTED = "imported"
"""Profile of a log that was made of the episodes of another program."""


class RunStarted(Event):
    """The run's processes are being started from this recipe."""

    subject: ClassVar[str] = "run.started"
    recipe: dict[str, Any]
    """The resolved recipe."""
    profile: str
    """Name of the recipe's profile; `imported` if the log has the episodes of another program."""
    reason: str
    """Reason for the choice of this profile."""
    folder: str
    """Path of the run's folder at the start, as in the recipe; the folder may have been moved since."""


class RunResumed(Event):
    """A run that ended early resumes: its processes are started again and fold the log."""

    subject: ClassVar[str] = "run.resumed"
    recipe: dict[str, Any]
    """The resolved recipe, in effect from now on."""
    reason: str
    """Settings that differ from before; empty if there are none."""
    folder: str
    """Path of the run's folder."""
    from_step: int = -1
    """Step of the checkpoint from which the run resumes, ignoring later ones; -1 for the newest."""
    queued: dict[str, int] | None = None
    """Attempts in the work queue, by episode; None if the queue was not read."""
    published: dict[str, int] = {}
    """Sequence of the last event whose episodes had been published, by kind of actor that publishes episodes."""


class RunForked(Event):
    """The events before this one are those of another run, up to one of its checkpoints: this run goes on from there.

    A `RunResumed` with its recipe follows.
    """

    subject: ClassVar[str] = "run.forked"
    parent: str
    """Name of the other run's folder, which lies beside that of this run."""
    step: int
    """Step of the checkpoint."""
    prefix: int
    """Number of events before the fork, which have the sequences that they have in the log of the other run."""
    head: str
    """Head of the hash chain over them."""
    reused: int
    """Number of recorded episodes that ended after them and are not sampled again; their events follow the prefix."""
    reason: str
    """Settings that differ from those of the other run; empty if there are none."""
    discarded_below: int = 0
    """Groups with a lower number that are in no batch yet are not trained: the settings of their episodes differ."""


class DiskLow(Event):
    """The disk of the run's folder is nearly full; below `needed_bytes` the run saves a checkpoint and ends."""

    subject: ClassVar[str] = "disk.low"
    free_bytes: int
    """Free space in bytes."""
    needed_bytes: int
    """Limit in bytes."""
    reason: str


class RunStopping(Event):
    """The run is to end early: the trainer saves a checkpoint."""

    subject: ClassVar[str] = "run.stopping"
    reason: str


class RunStalled(Event):
    """The run has made no progress for a while; the sentence has each wait, its duration, and the limit reached."""

    subject: ClassVar[str] = "run.stalled"
    sentence: str
    """Description of the stall: each wait with its duration and limit."""
    seconds: float


class RunFinished(Event):
    """The run is over; `error` is empty if it completed the recipe."""

    subject: ClassVar[str] = "run.finished"
    steps: int
    error: str = ""


class EventLoopBlocked(Event):
    """An agent blocked the event loop that it shares with other agents."""

    subject: ClassVar[str] = "loop.blocked"
    seconds: float
    """Length of one block, or the sum of many short ones of one line within 5 seconds; of a line that was reported
    shortly before, the sum of all since then."""
    line: str = ""
    """Line of the agent's code in which the loop was sampled most often, such as `agent.py:7`; empty if unknown."""
    innermost: str = ""
    """Innermost frame below that line, such as `ssl.py:713 in load_default_certs`."""
    episode: str = ""
    """Episode that ran this line for the longest time; empty if unknown."""
    episodes: int = 1
    """Number of episodes sampled at this line."""
    times: int = 1
    """Number of blocked periods summed up in `seconds`."""


class BusRestarted(Event):
    """nats-server had died or did not answer, and was restarted on its store, or its cluster lost a server.

    The log is intact.
    """

    subject: ClassVar[str] = "bus.restarted"
    reason: str
    seconds: float
    """Duration from its last answer until it accepted connections again."""
    restarts: int
    """Number of restarts since the run was started or resumed."""
    leader: str = ""
    """Server of the cluster that leads the log since; empty for the run's own server, which was restarted."""


class LogRecovered(Event):
    """The log had a gap, or ended before an event that had been read.

    The run continues from the intact part, which ends before this.
    """

    subject: ClassVar[str] = "log.recovered"
    damage: str
    """Description of the damage, with its position."""
    lost: int
    """Number of events after the intact part according to the server; the true number may be higher."""
    set_aside: tuple[str, ...] = ()
    """New names of data that is no longer used: the damaged store, and checkpoints of steps that are not in the log."""


class FaultInjected(Event):
    """`[chaos]` of the recipe injects this fault into the run shortly after the event."""

    subject: ClassVar[str] = "fault.injected"
    kind: str
    """`kill`, `pause`, `partition`, `flip`, `slow_disk` or `bad_completion`."""
    target: str
    """Process or file, `server` or `everything`."""
    detail: str
    """Description of the fault."""


class ActorStarted(Event):
    """An actor serves its mailbox."""

    subject: ClassVar[str] = "actor.started"
    actor: str
    process: str
    pid: int


class ActorFailed(Event):
    """An actor has failed; the supervisor starts a new instance while the restart budget lasts."""

    subject: ClassVar[str] = "actor.failed"
    actor: str
    process: str
    reason: str


class ActorStopped(Event):
    """An actor has stopped on request, or with its run."""

    subject: ClassVar[str] = "actor.stopped"
    actor: str
    process: str


class SnapshotStored(Event):
    """A snapshot of a fold over the log is on disk: after a restart it folds only the later events."""

    subject: ClassVar[str] = "snapshot.stored"
    fold: str
    """Name of the actor or other reader that folds the log."""
    after: int
    """Sequence of the last event in the state."""
    size: int
    """Size of the state in bytes."""


class SnapshotRefused(Event):
    """A snapshot could not be used: it is damaged, or belongs to another version of the program or another log."""

    subject: ClassVar[str] = "snapshot.refused"
    fold: str
    """Name of the actor or other reader that folds the log."""
    reason: str
    restored: int
    """Sequence of the last event in the earlier snapshot that was restored instead; 0 if the fold begins with the first
    event."""


class LogTrimmed(Event):
    """Events that neither a kept checkpoint nor a snapshot needs are removed from the beginning of the log.

    Or those that are older than `log.retention` allows.
    """

    subject: ClassVar[str] = "log.trimmed"
    first: int
    """Sequence of the first remaining event."""
    step: int
    """Step of the oldest checkpoint from which the log can be resumed; 0 for that of a served model."""
    removed: int
    """Number of events removed."""
    sessions: int = 0
    """Number of sessions that `log.retention` deletes with them."""
    before: float = 0.0
    """Time of the first remaining event, in seconds since the epoch; 0 unless `log.retention` deletes."""

    def occasion(self) -> str:
        """Returns the step of the trimming, or what `log.retention` deleted, as the end of a sentence."""
        if not self.before:
            return f" at step {self.step}"
        until = datetime.fromtimestamp(self.before, UTC).strftime("%Y-%m-%d %H:%M")
        return f" by log.retention, which deleted {self.sessions:,} sessions until {until} UTC"


class SnapshotsDue(Event):
    """Folds store snapshots of their state, so that the log can be trimmed up to here."""

    subject: ClassVar[str] = "snapshots.due"


class Wait(Value):
    """A wait of an actor."""

    name: str
    """Request and responder: `Generate from inference_worker-0`."""
    since: float
    """Seconds since the epoch."""
    deadline: float
    """Seconds since the epoch; 0 for a wait for work."""


class Heartbeat(Telemetry):
    """Liveness, activity and waits of an actor."""

    subject: ClassVar[str] = "actor.heartbeat"
    actor: str
    process: str
    pid: int
    handling: dict[str, int]
    """Number of messages in progress, by type."""
    waits: tuple[Wait, ...]
    """The longest waits, oldest first."""
    status: dict[str, float | str]
    """Figures that the actor reports about itself."""
    cpu_seconds: float
    """CPU time of the process in seconds."""
    peak_memory_bytes: int
    """Peak resident memory of the process in bytes."""
    cpu_wait_seconds: float = 0.0
    """Time in seconds for which its main thread was ready to run, and no core was free; 0 if unknown."""


class Throughput(Telemetry):
    """Number of tokens processed by an engine in a period."""

    subject: ClassVar[str] = "engine.throughput"
    actor: str
    side: Literal["generation", "training"]
    """Kind of the engine."""
    tokens: int
    """Number of tokens finished in the period; 0 where a decode step takes longer."""
    started: float
    """Seconds since the epoch."""
    seconds: float
    """Busy time in the period."""
    token_seconds: float = 0.0
    """Busy time that the tokens took, which may have begun in an earlier period; 0: `seconds`."""
    concurrent: int = 0
    """Number of completions in progress."""
    prefilled_tokens: int = 0
    """Number of prompt tokens that the generation engine computed, and of tokens recomputed after weight updates."""
    cached_tokens: int = 0
    """Number of prompt tokens whose KV cache the generation engine reused."""


class TrainerProgress(Telemetry):
    """Activity of the trainer outside of messages: preparing a model, or warming it up by SFT."""

    subject: ClassVar[str] = "trainer.progress"
    phase: str
    """Name of the activity."""
    done: int = 0
    """Units of it that are done."""
    total: int = 0
    """Units in total; 0 if unknown."""
    metrics: dict[str, float] = {}


class WatchProbe(Telemetry):
    """Published by the supervisor to itself.

    While probes arrive, missing heartbeats are the fault of the process, not of the bus.
    """

    subject: ClassVar[str] = "watch.probe"
    number: int
    """Number of the probe."""
