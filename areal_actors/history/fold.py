"""The fold of a run's log into the rows of its history.

It has no I/O but the database that it is given, and no clock.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from sqlite3 import Connection
from typing import Any

import msgspec

from areal_actors.history.attempts import AttemptFold
from areal_actors.history.episode_rows import BatchMemberRecord, BatchRecord, GroupRecord
from areal_actors.history.parts import (
    AbandonedPart,
    ConversationPart,
    EvaluatedPart,
    ExportedPart,
    RecordedPart,
    RecordedParts,
    ScoredPart,
)
from areal_actors.history.row import HistoryRow
from areal_actors.history.run_rows import (
    LOAD_COLUMNS,
    ActorRecord,
    EvaluationRecord,
    LaunchRecord,
    LoadRecord,
    LoadSampleRecord,
    MetricRecord,
    NoticeRecord,
    ProgressRecord,
    SavedRecord,
    StepRecord,
    VersionRecord,
)
from areal_actors.history.schema import insertion
from areal_actors.history.severity import severity_of
from areal_actors.messages import (
    KINDS,
    ActorFailed,
    ActorStarted,
    ActorStopped,
    BatchFormed,
    BatchRefused,
    CapacityGranted,
    CheckpointCommitted,
    ConversationKept,
    EpisodeAbandoned,
    EpisodeEvaluated,
    EpisodeScored,
    EvaluationCompleted,
    InteractionRecorded,
    InteractionsRecorded,
    LoadMeasured,
    LossEvaluated,
    RunFinished,
    RunResumed,
    RunStarted,
    StepCompleted,
    TrajectoryDropped,
    TrajectoryExported,
    WeightsLoaded,
    WeightsPublished,
)
from areal_bus.base import Envelope
from areal_bus.errors import CorruptMessage
from areal_bus.message import Event

PARTS: dict[str, type[msgspec.Struct]] = {
    InteractionRecorded.subject: RecordedPart,
    InteractionsRecorded.subject: RecordedParts,
    EpisodeScored.subject: ScoredPart,
    EpisodeEvaluated.subject: EvaluatedPart,
    EpisodeAbandoned.subject: AbandonedPart,
    TrajectoryExported.subject: ExportedPart,
    ConversationKept.subject: ConversationPart,
}
ALSO_NOTICES = (RunStarted, RunResumed, RunFinished, ActorFailed, BatchRefused)
"""Events that have rows of their own, and are notices, too."""


class HistoryFold:
    """Folds the events of a log, in order, into rows, which `write` puts into the database."""

    def __init__(self, database: Connection, progress: ProgressRecord | None = None) -> None:
        """`progress` is that of a database to continue."""
        self._database = database
        self.progress = progress or ProgressRecord()
        self.attempts = AttemptFold(database)
        self._group_size = 0
        self._rows: dict[type[HistoryRow], list[HistoryRow]] = {}
        if progress is not None:
            self._resume(progress)
        attempts = self.attempts
        self._handlers: dict[type[Any], Callable[[Any, int, float], None]] = {
            RecordedPart: lambda event, position, time: attempts.add_call(event, position, event.time or time),
            RecordedParts: attempts.add_calls,
            ScoredPart: attempts.score,
            ExportedPart: attempts.export,
            EvaluatedPart: attempts.evaluate,
            AbandonedPart: attempts.abandon,
            ConversationPart: attempts.keep_conversation,
            TrajectoryDropped: attempts.drop,
            CapacityGranted: self._grant,
            BatchFormed: self._form,
            BatchRefused: self._refuse,
            StepCompleted: self._complete,
            WeightsPublished: self._publish,
            WeightsLoaded: self._load,
            EvaluationCompleted: self._evaluate,
            LossEvaluated: self._evaluate_loss,
            CheckpointCommitted: self._commit,
            LoadMeasured: self._measure,
            ActorStarted: self._start_actor,
            ActorFailed: self._fail_actor,
            ActorStopped: self._stop_actor,
            RunStarted: self._launch,
            RunResumed: self._launch,
            RunFinished: self._finish,
        }
        self._decoders = {
            kind.subject: msgspec.msgpack.Decoder(PARTS.get(kind.subject, kind))
            for kind in KINDS
            if issubclass(kind, Event)
        }

    def _resume(self, progress: ProgressRecord) -> None:
        last = self._database.execute("SELECT recipe FROM run ORDER BY started DESC LIMIT 1").fetchone()
        self._take_recipe(msgspec.json.decode(last[0]) if last else {})
        self.attempts.resume()
        self.attempts.repeated = progress.repeated_ends

    def receive(self, envelope: Envelope) -> None:
        """Fold the next event of the log; one of an unknown kind has no row.

        Raises:
            CorruptMessage: the envelope is damaged.
        """
        progress, position = self.progress, envelope.sequence
        decoder = self._decoders.get(envelope.subject)
        if decoder is not None and not envelope.claim:
            message = _decode(decoder, envelope)
            handler = self._handlers.get(type(message))
            if handler is not None:
                handler(message, position, envelope.time)
            if handler is None or isinstance(message, ALSO_NOTICES):
                self._notice(message, envelope)
        progress.first, progress.began = progress.first or position, progress.began or envelope.time
        progress.run, progress.last, progress.last_id = envelope.run, position, envelope.id
        progress.now = max(progress.now, envelope.time)

    def write(self) -> None:
        """Write the rows of the events since the last call; the caller commits."""
        self.attempts.write()
        self.progress.repeated_ends = self.attempts.repeated
        for table, rows in self._rows.items():
            self._database.executemany(insertion(table), map(msgspec.structs.astuple, rows))
        self._rows.clear()
        self._database.execute(insertion(ProgressRecord), msgspec.structs.astuple(self.progress))

    def _add(self, row: HistoryRow) -> None:
        self._rows.setdefault(type(row), []).append(row)

    def _notice(self, message: Event, envelope: Envelope) -> None:
        fields = msgspec.json.encode(message, enc_hook=bytes.hex).decode()
        self._add(
            NoticeRecord(
                position=envelope.sequence,
                at=envelope.time,
                kind=envelope.subject,
                severity=severity_of(message),
                sender=envelope.sender,
                fields=fields,
            )
        )

    # ------------------------------------------------------------ groups, batches, steps

    def _take_recipe(self, recipe: dict[str, Any]) -> None:
        self.attempts.ends.begin(recipe)
        self._group_size = self.attempts.ends.group_size

    def _grant(self, event: CapacityGranted, position: int, time: float) -> None:
        groups = range(event.first_group, event.first_group + event.groups)
        for group in groups:
            self._add(GroupRecord(number=group, granted=position, granted_at=time, weight_version=event.weight_version))
        self.attempts.grant(groups, self._group_size, position, time)

    def _form(self, event: BatchFormed, position: int, time: float) -> None:
        members = [(number, member) for number, group in enumerate(event.groups) for member in group]
        for place, (number, member) in enumerate(members):
            self._add(
                BatchMemberRecord(
                    formed=position, place=place, group_index=number, episode=member.episode, ended=member.sequence
                )
            )
            self.attempts.put_into_batch(member.sequence, event.step + 1, position)
        self._add(
            BatchRecord(
                formed=position,
                formed_at=time,
                changed=position,
                step=event.step + 1,
                oldest_version=event.oldest_version,
                trained_trajectories=event.trained_trajectories,
                trained_tokens=event.trained_tokens,
                dropped_trajectories=event.dropped_trajectories,
                dropped_tokens=event.dropped_tokens,
                filtered_groups=event.filtered_groups,
            )
        )

    def _refuse(self, event: BatchRefused, position: int, _: float) -> None:
        self.write()
        change = (len(event.sequences), position, event.step + 1)
        self._database.execute(
            "UPDATE batch SET refused = ?, changed = ? WHERE formed = (SELECT max(formed) FROM batch WHERE step = ?)",
            change,
        )

    def _complete(self, event: StepCompleted, position: int, time: float) -> None:
        replaced = [
            row
            for row in self._rows.get(StepRecord, [])
            if isinstance(row, StepRecord) and row.step >= event.step and row.replaced is None
        ]
        for row in replaced:
            row.replaced = row.changed = position
        # a restarted trainer repeats steps
        change = (position, position, event.step)
        self._database.execute("UPDATE step SET replaced = ?, changed = ? WHERE step >= ? AND replaced IS NULL", change)
        self._add(
            StepRecord(
                completed=position,
                completed_at=time,
                changed=position,
                step=event.step,
                sequences_checksum=event.sequences_checksum,
                weights_checksum=event.weights_checksum,
            )
        )
        for name, value in event.metrics.items():
            self._add(MetricRecord(completed=position, name=name, value=value))

    def _publish(self, event: WeightsPublished, position: int, time: float) -> None:
        at = event.location
        self.progress.model = at.model or self.progress.model
        self._add(
            VersionRecord(
                published=position,
                published_at=time,
                weight_version=event.weight_version,
                checksum=at.checksum,
                folder=at.folder,
                model=at.model,
            )
        )
        self.attempts.publish(event.weight_version, position, time)

    def _load(self, event: WeightsLoaded, position: int, time: float) -> None:
        self._add(LoadRecord(loaded=position, loaded_at=time, **msgspec.structs.asdict(event)))

    def _evaluate(self, event: EvaluationCompleted, position: int, time: float) -> None:
        self._add(
            EvaluationRecord(
                completed=position,
                completed_at=time,
                weight_version=event.weight_version,
                mode=event.mode,
                tasks=event.tasks,
                failed=event.failed,
                accuracy=event.accuracy,
                reward_mean=event.reward_mean,
                common_reward_mean=event.common_reward_mean,
                mean_tokens=event.mean_tokens,
                ended_by_model=event.ended_by_model,
                metrics=_json(event.reward_metrics),
                sampled_by=_json(event.sampled_by),
            )
        )

    def _evaluate_loss(self, event: LossEvaluated, position: int, time: float) -> None:
        self._add(
            EvaluationRecord(
                completed=position,
                completed_at=time,
                weight_version=event.weight_version,
                mode="examples",
                tasks=event.examples,
                metrics=_json(event.metrics),
            )
        )

    def _commit(self, event: CheckpointCommitted, position: int, time: float) -> None:
        fields = msgspec.structs.asdict(event) | {"kept": _json(event.kept)}
        self._add(SavedRecord(committed=position, committed_at=time, **fields))

    def _measure(self, event: LoadMeasured, position: int, time: float) -> None:
        columns = {name: _json(getattr(event, name)) for name in LOAD_COLUMNS}
        fields = msgspec.structs.asdict(event) | columns | {"engine_full": int(event.engine_full)}
        self._add(LoadSampleRecord(measured=position, measured_at=time, **fields))

    # ------------------------------------------------------------ run and actors

    def _launch(self, event: RunStarted | RunResumed, position: int, time: float) -> None:
        self._take_recipe(event.recipe)
        self._add(
            LaunchRecord(
                started=position,
                started_at=time,
                resumed=int(isinstance(event, RunResumed)),
                profile=event.profile if isinstance(event, RunStarted) else "",
                reason=event.reason,
                recipe=_json(event.recipe),
            )
        )

    def _finish(self, event: RunFinished, _: int, time: float) -> None:
        self.write()
        change = (time, event.steps, event.error)
        self._database.execute(
            "UPDATE run SET finished_at = ?, steps = ?, error = ? WHERE started = (SELECT max(started) FROM run)",
            change,
        )

    def _start_actor(self, event: ActorStarted, position: int, time: float) -> None:
        self._change_actor(event, "started", position, time, pid=event.pid)

    def _fail_actor(self, event: ActorFailed, position: int, time: float) -> None:
        self._change_actor(event, "failed", position, time, detail=event.reason)

    def _stop_actor(self, event: ActorStopped, position: int, time: float) -> None:
        self._change_actor(event, "stopped", position, time)

    def _change_actor(
        self,
        event: ActorStarted | ActorFailed | ActorStopped,
        change: str,
        position: int,
        time: float,
        *,
        pid: int | None = None,
        detail: str = "",
    ) -> None:
        self._add(
            ActorRecord(
                changed=position,
                changed_at=time,
                actor=event.actor,
                process=event.process,
                change=change,
                pid=pid,
                detail=detail,
            )
        )


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _decode(decoder: msgspec.msgpack.Decoder[Any], envelope: Envelope) -> Any:
    if zlib.crc32(envelope.body) != envelope.checksum:
        raise CorruptMessage(
            f"event {envelope.sequence}, {envelope.subject}: the checksum does not match: it was damaged in the store"
        )
    try:
        return decoder.decode(envelope.body)
    except msgspec.MsgspecError as error:
        raise CorruptMessage(f"event {envelope.sequence}, {envelope.subject}, cannot be decoded: {error}") from error
