"""Audit of a run: every granted group is trained, dropped or abandoned once, on the weights that its events name.

A fold over the log without I/O. `fault.py` lists what is checked; a fault has the sequence of its event. The
state is plain data that msgspec encodes, so that the fold can continue from a snapshot if the log is trimmed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from areal_actors.audit.fault import AuditFault
from areal_actors.audit.groups import ExportedTrajectory, Finding, GroupLedger, format_numbers
from areal_actors.audit.recomputation import RecomputeProgress
from areal_actors.audit.session_versions import SessionVersions
from areal_actors.audit.source_ledger import SourceLedger
from areal_actors.messages import (
    KINDS,
    BatchFormed,
    CandidatePublished,
    CapacityGranted,
    CheckpointCommitted,
    CheckpointStaged,
    ConversationKept,
    EpisodeAbandoned,
    ExamplesDrawn,
    FaultInjected,
    RunFinished,
    RunResumed,
    RunStarted,
    SessionStarted,
    SourcesChanged,
    StepCompleted,
    TrajectoryDropped,
    TrajectoryExported,
    WeightsLoaded,
    WeightsPublished,
)
from areal_actors.messages.episode_ends import EpisodeCounts
from areal_bus.message import Message

FAULTS_KEPT = 200
"""Number of faults kept in full; further ones are only counted."""
KINDS_BY_SUBJECT: Mapping[str, type[Message]] = {kind.subject: kind for kind in KINDS}


class Version(msgspec.Struct):
    """One version of the weights, as recorded in the log."""

    checksum: str
    published_at: int
    published: int = 1
    """Number of publications: more than 1 after resumes and replayed steps."""
    loaded: int = 0
    """Number of loads by inference workers with the same checksum."""
    proved: bool = False
    """True if recomputed from the log with the same checksum."""

    def is_compared(self) -> bool:
        """True if the checksum was seen at least twice."""
        return self.loaded > 0 or self.published > 1 or self.proved


class Audit(msgspec.Struct):
    """State of the audit; pass it the events of the log in order with `event`."""

    sequence: int = 0
    """Sequence of the newest event."""
    recipe: dict[str, Any] = {}
    counts: EpisodeCounts = msgspec.field(default_factory=EpisodeCounts)
    groups: GroupLedger = msgspec.field(default_factory=GroupLedger)
    batches: dict[int, int] = {}
    """Sequence of the event of each batch or draw of examples since the checkpoint before the last, by weight
    version."""
    drawn: dict[int, tuple[int, ...]] = {}
    """Example numbers of the last steps."""
    formed: int = 0
    """Number of batches, or of draws of examples."""
    steps: int = 0
    """Number of completed steps."""
    versions: dict[int, Version] = {}
    sequences_checked: int = 0
    """Number of steps whose sequences were rebuilt from the log."""
    steps_proved: int = 0
    """Number of steps of a run on examples that were recomputed with the same sequences and bit-identical metrics."""
    injected: int = 0
    """Number of faults injected by `[chaos]`."""
    lives: int = 0
    """Number of starts and resumes of the run."""
    finished: RunFinished | None = None
    faults: list[AuditFault] = []
    more_faults: int = 0
    sources: SourceLedger = msgspec.field(default_factory=SourceLedger)
    sessions: SessionVersions = msgspec.field(default_factory=SessionVersions)

    # ------------------------------------------------------------ the fold

    def event(self, sequence: int, message: Message | None) -> None:
        """Fold the next event of the log; None for an event of an unknown kind."""
        if sequence != self.sequence + 1:
            first = self.sequence + 1
            missing, earlier = (
                f"events {first} to {sequence - 1} are missing",
                f"event {sequence} follows event {self.sequence}",
            )
            self.fault(sequence, "gap", missing if sequence > first else earlier)
        self.sequence = max(sequence, self.sequence)
        for check, sentence in self._fold(message):
            self.fault(sequence, check, sentence)

    def unreadable(self, sequence: int, why: str) -> None:
        """Record that an event, or the rest of the log, cannot be read."""
        self.fault(sequence, "gap", why)
        self.sequence = max(sequence, self.sequence)

    def fault(self, sequence: int, check: str, sentence: str) -> None:
        """Record a fault."""
        if len(self.faults) < FAULTS_KEPT:
            self.faults.append(AuditFault(sequence=sequence, check=check, sentence=sentence))
        else:
            self.more_faults += 1

    def _fold(self, message: Message | None) -> Iterator[Finding]:  # noqa: C901, PLR0912 - one line for each kind
        if message is not None:
            self.counts.receive(message)
        match message:
            case RunStarted() | RunResumed():
                yield from self._began(message)
            case CapacityGranted():
                yield from self.groups.grant(message.first_group, message.groups)
            case TrajectoryExported():
                yield from self._check_export(message)
            case EpisodeAbandoned():
                yield from self._check_abandoned_attempt(message)
            case TrajectoryDropped():
                yield from self.groups.drop(message.episode, message.group, message.reason)
            case BatchFormed():
                yield from self._batch(message)
            case ExamplesDrawn():
                yield from self._examples(message)
            case StepCompleted():
                yield from self._step(message)
            case WeightsPublished() | CandidatePublished():
                yield from self._check_published_version(message)
            case SessionStarted() | ConversationKept():
                yield from self.sessions.receive(message)
            case WeightsLoaded():
                yield from self._check_loaded_version(message)
            case CheckpointStaged() | CheckpointCommitted():
                yield from self._checkpoint(message)
            case RunFinished():
                yield from self._check_run_end(message)
            case SourcesChanged():
                self.sources.change(message.first_group, message.weights)
            case FaultInjected():
                self.injected += 1

    def _began(self, message: RunStarted | RunResumed) -> Iterator[Finding]:
        if isinstance(message, RunStarted) and self.lives:
            yield "end", "the log has a second RunStarted event"
        self.lives += 1
        self.recipe, self.finished = message.recipe, None
        self.groups.group_size = int(self.setting("algorithm", "group_size") or 1)
        self.sources.begin(message.recipe)

    def _check_export(self, message: TrajectoryExported) -> Iterator[Finding]:
        trajectory = message.trajectory
        yield from self.sessions.receive(message)
        spans = [span.weight_version for turn in trajectory.interactions for span in turn.completion.versions]
        if unknown := {version for version in spans if version not in self.versions}:
            yield (
                "version",
                (
                    f"episode {trajectory.episode} has tokens of version {format_numbers(unknown)}, which was never"
                    " published"
                ),
            )
        if not self.is_served():
            exported = ExportedTrajectory(
                sequence=self.sequence, tokens=trajectory.sampled_tokens(), oldest_version=trajectory.oldest_version()
            )
            yield from self.groups.end(trajectory.episode, trajectory.group, self.sequence, exported)
            yield from self.sources.end(trajectory.group, trajectory.source)

    def _check_abandoned_attempt(self, message: EpisodeAbandoned) -> Iterator[Finding]:
        work = message.work
        if work.purpose == "train" and work.attempts_left == 0 and not self.is_served():
            yield from self.groups.end(work.episode, work.group, self.sequence)
            yield from self.sources.end(work.group, work.task.source)

    def _batch(self, message: BatchFormed) -> Iterator[Finding]:
        yield from self._record_batch(message.step, "batch")
        version = self.versions.get(message.step)
        yield from self.groups.batch(message, version.published_at if version else 0)

    def _examples(self, message: ExamplesDrawn) -> Iterator[Finding]:
        """Repeating a draw is allowed; another draw for the same step is a fault."""
        if (before := self.drawn.get(message.step)) is not None:
            if before != message.numbers:
                yield "batch", f"other examples were drawn for step {message.step + 1} than the first time"
            return
        self.drawn = {
            **{step: numbers for step, numbers in self.drawn.items() if step >= self.steps - 1},
            message.step: message.numbers,
        }
        if message.step >= self.formed:
            yield from self._record_batch(message.step, "draw of examples")

    def _record_batch(self, step: int, what: str) -> Iterator[Finding]:
        if step != self.formed:
            yield "batch", f"found a {what} for step {step + 1}, expected step {self.formed + 1}"
        elif step > self.steps:
            yield "batch", f"the {what} for step {step + 1} precedes the completion of step {self.steps + 1}"
        self.formed = max(self.formed, step + 1)
        self.batches.setdefault(step, self.sequence)

    def _step(self, message: StepCompleted) -> Iterator[Finding]:
        if message.step <= self.steps:
            yield "step", f"step {message.step} was completed a second time"
        elif message.step > self.steps + 1:
            yield "step", f"step {message.step} was completed, but {_steps(self.steps + 1, message.step)} was not"
        if message.step > self.formed:
            yield "step", f"step {message.step} was completed without a batch"
        self.steps = max(self.steps, message.step)
        self.groups.trained_step(message.step - 1)

    def _check_published_version(self, message: WeightsPublished | CandidatePublished) -> Iterator[Finding]:
        version, checksum = message.weight_version, message.location.checksum
        if (earlier := self.versions.get(version)) is not None:
            earlier.published += 1
            if earlier.checksum != checksum:
                first = f"first with {earlier.checksum} (event {earlier.published_at})"
                yield "checksum", f"version {version} was published with {checksum}, but {first}"
            return
        newest = max(self.versions, default=-1)
        self.versions[version] = Version(checksum=checksum, published_at=self.sequence)
        if version != newest + 1 and not self.learns_from_examples():
            yield "version", f"version {version} was published, expected version {newest + 1}"
        if version > self.steps and not self.is_served():  # a served model has versions without steps
            yield "version", f"version {version} was published before step {version} was completed"

    def _check_loaded_version(self, message: WeightsLoaded) -> Iterator[Finding]:
        version = message.weight_version
        if (published := self.versions.get(version)) is None:
            yield "version", f"{message.worker} loaded version {version}, which was never published"
        elif published.checksum != message.checksum:
            yield (
                "checksum",
                (
                    f"{message.worker} loaded version {version} with {message.checksum}, but published was"
                    f" {published.checksum}"
                ),
            )
        else:
            published.loaded += 1

    def _checkpoint(self, message: CheckpointStaged | CheckpointCommitted) -> Iterator[Finding]:
        step = message.step
        if step > self.steps:
            yield "checkpoint", f"a checkpoint names step {step}, but {self.steps} steps were completed"
        elif (place := self.batches.get(step - 1)) is not None and place != message.cursor:
            yield (
                "checkpoint",
                f"the checkpoint of step {step} names event {message.cursor} as its last batch, expected event {place}",
            )
        if isinstance(message, CheckpointCommitted):
            self.batches = {batch: place for batch, place in self.batches.items() if batch >= step - 1}

    def _check_run_end(self, message: RunFinished) -> Iterator[Finding]:
        self.finished = message
        if message.steps > self.steps or (
            not message.error and message.steps < self.steps
        ):  # an early end may overlook a last step
            yield "end", f"the run reports {message.steps} steps at its end; the log has {self.steps}"
        wanted = self.setting("steps")
        if not message.error and wanted and message.steps != wanted and not self.is_served():
            yield "end", f"the run reports success after {message.steps} steps; its recipe asks for {wanted}"

    def compare_computed(self, recomputed: RecomputeProgress, logged: StepCompleted | None) -> bool:
        """Compare a recomputed version or step with the log; returns False if they differ."""
        if recomputed.version >= 0 and (published := self.versions.get(recomputed.version)) is not None:
            if recomputed.checksum != published.checksum:
                again = f"recomputed from the log it has {recomputed.checksum}; later versions were not recomputed"
                what = f"version {recomputed.version} was published with {published.checksum}; {again}"
                self.fault(published.published_at, "checksum", what)
                return False
            published.proved = True
        if recomputed.step and logged is not None:
            if recomputed.sequences_checksum != logged.sequences_checksum:
                what = f"step {recomputed.step} was given sequences with checksum {logged.sequences_checksum}; "
                what += f"rebuilt they have {recomputed.sequences_checksum}"
                self.fault(0, "sequences", what)
                return False
            if self.learns_from_examples():
                return self._same_metrics(recomputed, logged)
        return True

    def all_computed(self) -> None:
        """Record versions of the log that were not recomputed."""
        if missing := {
            number for number, version in self.versions.items() if not version.proved and number <= self.steps
        }:
            self.fault(0, "checksum", f"versions that were published but not recomputed: {format_numbers(missing)}")

    def _same_metrics(self, recomputed: RecomputeProgress, logged: StepCompleted) -> bool:
        """Compare metrics, which stand in for the later versions of a run on examples: these are not published."""
        for name, value in logged.metrics.items():
            if (again := recomputed.metrics.get(name)) != value:
                what = f"step {recomputed.step} reported {name} = {value!r}; recomputed from the log it is {again!r}"
                self.fault(0, "checksum", what)
                return False
        self.steps_proved += 1
        return True

    # ------------------------------------------------------------ results

    def setting(self, *path: str) -> Any:
        """Returns a setting of the recipe, or None."""
        value: Any = self.recipe
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def learns_from_examples(self) -> bool:
        """True if the run has examples instead of episodes; then only the first weights are published."""
        return bool(self.setting("actors", "example_source", "count"))

    def is_served(self) -> bool:
        """True if the run only serves a model."""
        return bool(self.setting("actors", "trainer", "count") == 0)

    def finished_without_error(self) -> bool:
        """True if the run is over and reported no error."""
        return self.finished is not None and not self.finished.error

    def all_faults(self) -> list[AuditFault]:
        """Returns the faults of events and those found at the end of the log."""
        return [
            *self.faults,
            *(AuditFault(sequence=0, check=check, sentence=sentence) for check, sentence in self._end_findings()),
        ]

    def _end_findings(self) -> Iterator[Finding]:
        """Yields open steps and groups of a run that finished: capacity is never granted beyond its last step."""
        if not self.sequence:
            yield "end", "the log is empty"
        elif not self.lives:
            yield "end", "the log has no start of a run"
        if not self.finished_without_error() or self.is_served():
            return
        if self.formed > self.steps:
            yield "step", f"{_steps(self.steps + 1, self.formed + 1)} has a batch but was never completed"
        if not self.learns_from_examples() and (newest := max(self.versions, default=-1)) < self.steps:
            yield "version", f"step {self.steps} was completed, but the newest published version is {newest}"
        if unfinished := {
            number for number, record in self.groups.under_way.items() if record.complete_at and record.step < 0
        }:
            yield "lost", f"complete groups that were neither trained nor dropped: {format_numbers(unfinished)}"
        rest = {number for number, record in self.groups.under_way.items() if not record.complete_at}
        if rest and not self.setting("batcher", "dynamic_batch"):
            yield "lost", f"groups that were granted and never ended: {format_numbers(rest)}"

    def count_lost(self) -> int:
        """Returns the number of trajectories and groups that never ended."""
        return sum(fault.check == "lost" for fault in self.all_faults())

    def twice(self) -> int:
        """Returns the number of trajectories, groups and steps that were counted twice."""
        return sum(fault.check == "twice" for fault in self.all_faults())

    def verdict(self) -> str:
        """Returns a summary, such as `0 lost, 0 twice, 41 of 41 versions compared`; `proved` means recomputed."""
        faults = len(self.all_faults()) + self.more_faults
        phrases = [f"{faults} faults" if faults > 1 else "1 fault"] if faults else []
        under_way = len(self.groups.under_way)
        waiting = [f"{under_way} groups under way"] if under_way else []
        return ", ".join(
            [*phrases, f"{self.count_lost()} lost", f"{self.twice()} twice", self._versions_checked(), *waiting]
        )

    def _versions_checked(self) -> str:
        if self.learns_from_examples():
            return (
                f"{self.steps_proved} of {self.steps} steps proved" if self.steps_proved else f"{self.steps} steps once"
            )
        every = len(self.versions)
        if proved := sum(version.proved for version in self.versions.values()):
            return f"{proved} of {every} versions proved"
        return f"{sum(version.is_compared() for version in self.versions.values())} of {every} versions compared"


def _steps(first: int, end: int) -> str:
    return f"step {first}" if end - first == 1 else f"steps {first} to {end - 1}"
