"""The audit of a run: does its log say that everything granted was trained, dropped or abandoned, once, on the weights it names?

A fold over the log without any I/O. What it checks of each event is named in `CHECKS`; a fault carries its place in the log. The
state is plain data that msgspec encodes, so that it can be kept where a log is trimmed and the fold goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from areal_actors.messages import (
    KINDS,
    BatchFormed,
    CapacityGranted,
    CheckpointSaved,
    CheckpointWritten,
    EpisodeAbandoned,
    ExamplesDrawn,
    FaultInjected,
    RunFinished,
    RunResumed,
    RunStarted,
    StepCompleted,
    TrajectoryDropped,
    TrajectoryExported,
    WeightsLoaded,
    WeightsPublished,
)
from areal_actors.steps.audit_groups import Found, GroupLedger, shown_numbers
from areal_actors.values import Value
from bus.message import Message

CHECKS: Mapping[str, str] = {
    "gap": "events follow each other by their numbers, and each can be read",
    "grant": "groups are granted once and in order, and only they have episodes",
    "lost": "no trajectory and no group is without an end when the run has done its steps, or is passed over for younger ones",
    "twice": "no trajectory is in two batches, twice in one, or in a batch and dropped",
    "drop": "what is dropped was exported, and its group is complete",
    "batch": "each batch follows the one before it, and names whole groups and the places of their trajectories",
    "count": "the batcher's own counts are those of the log",
    "step": "each step is completed once, in order, after its batch",
    "rows": "the rows that the loss was given are those of the batch",
    "version": "each weight version is published after its step, and no token has a version that was not",
    "checksum": "a version has one checksum wherever it was published, loaded or computed again",
    "checkpoint": "a checkpoint names its step and the place of its last batch",
    "end": "the run's last event counts the steps that the log has",
}
FAULTS_KEPT = 200
"""Of more, only the number is kept."""
KINDS_BY_SUBJECT: Mapping[str, type[Message]] = {kind.subject: kind for kind in KINDS}


class AuditFault(Value):
    """Something in a log that cannot be so."""

    sequence: int
    """Of the event at which it shows; 0 if it shows at the end of the log only."""
    check: str
    """One of `CHECKS`."""
    sentence: str

    def __str__(self) -> str:
        return f"{f'event {self.sequence}' if self.sequence else 'end of the log'}: {self.check}: {self.sentence}"


class Version(msgspec.Struct):
    """What the log says of one version of the weights."""

    checksum: str
    published_at: int
    published: int = 1
    """How often: once more after each resume and each step that was taken again in the open."""
    loaded: int = 0
    """By inference workers, each time with the same checksum."""
    proved: bool = False
    """Computed again from the log, with the same checksum."""

    def compared(self) -> bool:
        """Whether the checksum was seen a second time."""
        return self.loaded > 0 or self.published > 1 or self.proved


class Computed(Value):
    """What a trainer that was fed the log once more has come to."""

    phase: str = ""
    """How far a long preparation is."""
    version: int = -1
    checksum: str = ""
    """Of that version of the weights."""
    step: int = 0
    rows_checksum: str = ""
    metrics: dict[str, float] = {}
    error: str = ""
    """Why nothing more follows."""


class Audit(msgspec.Struct):
    """What has been found so far; feed it the log in order with `event`."""

    sequence: int = 0
    """Of the newest event."""
    recipe: dict[str, Any] = {}
    groups: GroupLedger = msgspec.field(default_factory=GroupLedger)
    batches: dict[int, int] = {}
    """The place of the batch, or of the examples, of each step since the checkpoint before the last; by weight version."""
    drawn: dict[int, tuple[int, ...]] = {}
    """The examples of the last steps."""
    formed: int = 0
    """Batches, or draws of examples."""
    steps: int = 0
    """Completed."""
    versions: dict[int, Version] = {}
    rows_checked: int = 0
    """Steps whose rows were made again from the log."""
    steps_proved: int = 0
    """Of a run that learns from examples: steps that were computed again with the same rows and the same metrics to the last bit."""
    injected: int = 0
    """Faults that `[chaos]` has injected."""
    lives: int = 0
    finished: RunFinished | None = None
    faults: list[AuditFault] = []
    more_faults: int = 0

    # ------------------------------------------------------------ the fold

    def event(self, sequence: int, message: Message | None) -> None:
        """Take in the next event of the log; None is one of a kind that is not known here."""
        if sequence != self.sequence + 1:
            first = self.sequence + 1
            what = (
                f"events {first} to {sequence - 1} are missing" if sequence > first else f"event {sequence} follows event {self.sequence}"
            )
            self.fault(sequence, "gap", what)
        self.sequence = max(sequence, self.sequence)
        for check, sentence in self._fold(message):
            self.fault(sequence, check, sentence)

    def unreadable(self, sequence: int, why: str) -> None:
        """An event, or the rest of the log, cannot be read."""
        self.fault(sequence, "gap", why)
        self.sequence = max(sequence, self.sequence)

    def fault(self, sequence: int, check: str, sentence: str) -> None:
        """Keep a fault."""
        if len(self.faults) < FAULTS_KEPT:
            self.faults.append(AuditFault(sequence=sequence, check=check, sentence=sentence))
        else:
            self.more_faults += 1

    def _fold(self, message: Message | None) -> Iterator[Found]:  # noqa: C901, PLR0912 - one line for each kind
        match message:
            case RunStarted() | RunResumed():
                yield from self._began(message)
            case CapacityGranted():
                yield from self.groups.grant(message.first_group, message.groups)
            case TrajectoryExported():
                yield from self._exported(message)
            case EpisodeAbandoned():
                yield from self._abandoned(message)
            case TrajectoryDropped():
                yield from self.groups.drop(message.episode, message.group, message.reason)
            case BatchFormed():
                yield from self._batch(message)
            case ExamplesDrawn():
                yield from self._examples(message)
            case StepCompleted():
                yield from self._step(message)
            case WeightsPublished():
                yield from self._published(message)
            case WeightsLoaded():
                yield from self._loaded(message)
            case CheckpointWritten() | CheckpointSaved():
                yield from self._checkpoint(message)
            case RunFinished():
                yield from self._finished(message)
            case FaultInjected():
                self.injected += 1

    def _began(self, message: RunStarted | RunResumed) -> Iterator[Found]:
        if isinstance(message, RunStarted) and self.lives:
            yield "end", "the run is started a second time in one log"
        self.lives += 1
        self.recipe, self.finished = message.recipe, None
        self.groups.group_size = int(self.setting("algorithm", "group_size") or 1)

    def _exported(self, message: TrajectoryExported) -> Iterator[Found]:
        trajectory = message.trajectory
        spans = [span.weight_version for turn in trajectory.interactions for span in turn.completion.versions]
        if unknown := {version for version in spans if version not in self.versions}:
            yield "version", f"episode {trajectory.episode} has tokens of version {shown_numbers(unknown)}, which was never published"
        if not self.is_served():
            tokens, oldest = trajectory.sampled_tokens(), trajectory.oldest_version()
            yield from self.groups.export(trajectory.episode, trajectory.group, self.sequence, tokens, oldest)

    def _abandoned(self, message: EpisodeAbandoned) -> Iterator[Found]:
        work = message.work
        if work.purpose == "train" and work.attempts_left == 0 and not self.is_served():
            yield from self.groups.give_up(work.episode, work.group, self.sequence)

    def _batch(self, message: BatchFormed) -> Iterator[Found]:
        yield from self._formed(message.step, "batch")
        known = self.versions.get(message.step)
        yield from self.groups.batch(message, known.published_at if known else 0)

    def _examples(self, message: ExamplesDrawn) -> Iterator[Found]:
        """The same draw may be repeated; another one for the same step may not."""
        if (before := self.drawn.get(message.step)) is not None:
            if before != message.numbers:
                yield "batch", f"other examples were drawn for step {message.step + 1} than before"
            return
        self.drawn = {**{step: numbers for step, numbers in self.drawn.items() if step >= self.steps - 1}, message.step: message.numbers}
        if message.step >= self.formed:
            yield from self._formed(message.step, "draw of examples")

    def _formed(self, step: int, what: str) -> Iterator[Found]:
        if step != self.formed:
            yield "batch", f"a {what} for step {step + 1} where that for step {self.formed + 1} belongs"
        elif step > self.steps:
            yield "batch", f"the {what} for step {step + 1} comes before step {self.steps + 1} was completed"
        self.formed = max(self.formed, step + 1)
        self.batches.setdefault(step, self.sequence)

    def _step(self, message: StepCompleted) -> Iterator[Found]:
        if message.step <= self.steps:
            yield "step", f"step {message.step} was completed a second time"
        elif message.step > self.steps + 1:
            yield "step", f"step {message.step} was completed, but {_steps(self.steps + 1, message.step)} never"
        if message.step > self.formed:
            yield "step", f"step {message.step} was completed without a batch"
        self.steps = max(self.steps, message.step)
        self.groups.trained_step(message.step - 1)

    def _published(self, message: WeightsPublished) -> Iterator[Found]:
        version, checksum = message.weight_version, message.location.checksum
        if (known := self.versions.get(version)) is not None:
            known.published += 1
            if known.checksum != checksum:
                yield (
                    "checksum",
                    f"version {version} was published with {checksum}, and before with {known.checksum} (event {known.published_at})",
                )
            return
        newest = max(self.versions, default=-1)
        self.versions[version] = Version(checksum=checksum, published_at=self.sequence)
        if version != newest + 1 and not self.learns_from_examples():
            yield "version", f"version {version} was published where version {newest + 1} belongs"
        if version > self.steps:
            yield "version", f"version {version} was published before step {version} was completed"

    def _loaded(self, message: WeightsLoaded) -> Iterator[Found]:
        version = message.weight_version
        if (known := self.versions.get(version)) is None:
            yield "version", f"{message.worker} has loaded version {version}, which was never published"
        elif known.checksum != message.checksum:
            yield "checksum", f"{message.worker} has loaded version {version} with {message.checksum}, and published was {known.checksum}"
        else:
            known.loaded += 1

    def _checkpoint(self, message: CheckpointWritten | CheckpointSaved) -> Iterator[Found]:
        step = message.step
        if step > self.steps:
            yield "checkpoint", f"a checkpoint is of step {step}, but {self.steps} steps were completed"
        elif (place := self.batches.get(step - 1)) is not None and place != message.cursor:
            yield "checkpoint", f"the checkpoint of step {step} names event {message.cursor} as its last batch, which is event {place}"
        if isinstance(message, CheckpointSaved):
            self.batches = {batch: place for batch, place in self.batches.items() if batch >= step - 1}

    def _finished(self, message: RunFinished) -> Iterator[Found]:
        self.finished = message
        if message.steps != self.steps:
            yield "end", f"the run says that it ended after {message.steps} steps; the log has {self.steps}"
        wanted = self.setting("steps")
        if not message.error and wanted and message.steps != wanted and not self.is_served():
            yield "end", f"the run says that it did what was asked after {message.steps} steps; its recipe asks for {wanted}"

    def computed(self, found: Computed, logged: StepCompleted | None) -> bool:
        """Compare a version or a step that was computed again with what the log says; False once they differ."""
        if found.version >= 0 and (known := self.versions.get(found.version)) is not None:
            if found.checksum != known.checksum:
                again = f"computed again from the log it has {found.checksum}, and no later one was computed"
                what = f"version {found.version} was published with {known.checksum}; {again}"
                self.fault(known.published_at, "checksum", what)
                return False
            known.proved = True
        if found.step and logged is not None:
            if found.rows_checksum != logged.rows_checksum:
                what = f"step {found.step} was given rows with checksum {logged.rows_checksum}; made again they have {found.rows_checksum}"
                self.fault(0, "rows", what)
                return False
            if self.learns_from_examples():
                return self._same_metrics(found, logged)
        return True

    def all_computed(self) -> None:
        """Nothing more was computed: whatever the log has beyond it is not proved."""
        if missing := {number for number, version in self.versions.items() if not version.proved and number <= self.steps}:
            self.fault(0, "checksum", f"versions that were published and not computed again: {shown_numbers(missing)}")

    def _same_metrics(self, found: Computed, logged: StepCompleted) -> bool:
        """Later versions of such a run are not published: the same loss and gradient of every step say that they are the same."""
        for name, value in logged.metrics.items():
            if (again := found.metrics.get(name)) != value:
                what = f"step {found.step} reported {name} = {value!r}; computed again from the log it is {again!r}"
                self.fault(0, "checksum", what)
                return False
        self.steps_proved += 1
        return True

    # ------------------------------------------------------------ what follows from it

    def setting(self, *path: str) -> Any:
        """A value of the recipe, or None."""
        value: Any = self.recipe
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def learns_from_examples(self) -> bool:
        """Whether there are no episodes, and only the first weights are published."""
        return bool(self.setting("actors", "example_source", "count"))

    def is_served(self) -> bool:
        """Whether nothing is trained."""
        return bool(self.setting("actors", "trainer", "count") == 0)

    def has_done_its_steps(self) -> bool:
        """Whether the run is over and says that it did what its recipe asked."""
        return self.finished is not None and not self.finished.error

    def all_faults(self) -> list[AuditFault]:
        """Those of events, and those that show at the end of the log."""
        return [*self.faults, *(AuditFault(sequence=0, check=check, sentence=sentence) for check, sentence in self._at_the_end())]

    def _at_the_end(self) -> Iterator[Found]:
        """A run that has done its steps leaves nothing under way: what is ahead of the weights never exceeds what they still need."""
        if not self.sequence:
            yield "end", "the log is empty"
        elif not self.lives:
            yield "end", "the log has no start of a run"
        if not self.has_done_its_steps() or self.is_served():
            return
        if self.formed > self.steps:
            yield "step", f"{_steps(self.steps + 1, self.formed + 1)} has a batch and was never completed"
        if not self.learns_from_examples() and (newest := max(self.versions, default=-1)) < self.steps:
            yield "version", f"step {self.steps} was completed, and the newest version published is {newest}"
        if unfinished := {number for number, record in self.groups.under_way.items() if record.complete_at and record.step < 0}:
            yield "lost", f"complete groups that were neither trained nor dropped: {shown_numbers(unfinished)}"
        rest = {number for number, record in self.groups.under_way.items() if not record.complete_at}
        if rest and not self.setting("batcher", "dynamic_batch"):
            yield "lost", f"groups that were granted and never ended: {shown_numbers(rest)}"

    def lost(self) -> int:
        """Trajectories and groups that should have an end and have none."""
        return sum(fault.check == "lost" for fault in self.all_faults())

    def twice(self) -> int:
        """Trajectories, groups and steps that count twice."""
        return sum(fault.check == "twice" for fault in self.all_faults())

    def verdict(self) -> str:
        """`0 lost, 0 twice, 41 of 41 versions compared`; `proved` only of what was computed again, and faults where there are any."""
        faults = len(self.all_faults()) + self.more_faults
        found = [f"{faults} faults" if faults > 1 else "1 fault"] if faults else []
        under_way = len(self.groups.under_way)
        waiting = [f"{under_way} groups under way"] if under_way else []
        return ", ".join([*found, f"{self.lost()} lost", f"{self.twice()} twice", self._versions_checked(), *waiting])

    def _versions_checked(self) -> str:
        if self.learns_from_examples():
            return f"{self.steps_proved} of {self.steps} steps proved" if self.steps_proved else f"{self.steps} steps once"
        every = len(self.versions)
        if proved := sum(version.proved for version in self.versions.values()):
            return f"{proved} of {every} versions proved"
        return f"{sum(version.compared() for version in self.versions.values())} of {every} versions compared"


def _steps(first: int, end: int) -> str:
    return f"step {first}" if end - first == 1 else f"steps {first} to {end - 1}"
