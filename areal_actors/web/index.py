"""The index of a run: a fold over its log into the rows of the page's tables. Without I/O and without a clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from areal_actors.display.sentences import LINES, plain_line, refused_batch
from areal_actors.history.fold import PARTS, decode_whole
from areal_actors.messages import (
    KINDS,
    ActorFailed,
    ActorStarted,
    ActorStopped,
    BatchFormed,
    BatchRefused,
    CapacityGranted,
    CompletionRefused,
    EpisodeAbandoned,
    EvaluationCompleted,
    LossEvaluated,
    OffPolicyChanged,
    RunFinished,
    RunResumed,
    RunStarted,
    StepCompleted,
    TrajectoryDropped,
    WeightsLoaded,
    WeightsPublished,
)
from areal_actors.web.episodes import EpisodeFold
from areal_actors.web.rows import ActorRow, BatchRow, BoundRow, EvaluationRow, NoticeRow, Row, RowTable, StepRow, VersionRow
from areal_bus.base import Envelope
from areal_bus.message import Message

FREQUENT = {EpisodeAbandoned, StepCompleted, CompletionRefused, EvaluationCompleted, LossEvaluated}
"""Kinds with a sentence that are no notices: the page's tables have them."""
WHOLE: tuple[type[Message], ...] = (
    *(CapacityGranted, BatchFormed, BatchRefused, StepCompleted, TrajectoryDropped, WeightsPublished, WeightsLoaded),
    *(EvaluationCompleted, LossEvaluated, ActorStarted, ActorFailed, ActorStopped, RunStarted, RunResumed, RunFinished),
    OffPolicyChanged,
)


class RunIndex:
    """Tables of a run as far as its log was read."""

    def __init__(self) -> None:
        self.run = ""
        self.began = 0.0
        """Time of the first event, in seconds since the epoch."""
        self.first = self.last = 0
        """Positions of the first and the last event that were read."""
        self.last_at = 0.0
        """Seconds from the first event to the last."""
        self.recipe: dict[str, Any] = {}
        self.finished: RunFinished | None = None
        self.model = ""
        """Model folder, relative to the run's if it is inside."""
        self.steps = RowTable(StepRow)
        self.batches = RowTable(BatchRow)
        self.versions = RowTable(VersionRow)
        self.evaluations = RowTable(EvaluationRow)
        self.actors = RowTable(ActorRow)
        self.bounds = RowTable(BoundRow)
        self.notices = RowTable(NoticeRow)
        self.fold = EpisodeFold()
        self._shown = {kind.subject: kind for kind in KINDS if kind in LINES and kind not in FREQUENT}
        kinds = {**self._shown, **{kind.subject: kind for kind in WHOLE}, **PARTS}
        self._decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {
            subject: msgspec.msgpack.Decoder(kind) for subject, kind in kinds.items()
        }
        self._handlers: dict[type[Any], Callable[[Any, int, float], None]] = {
            **self.fold.handlers(),
            CapacityGranted: self._record_grant,
            BatchFormed: self._record_batch,
            BatchRefused: self._record_refused_batch,
            StepCompleted: self._record_step,
            WeightsPublished: self._record_version,
            WeightsLoaded: self._record_load,
            EvaluationCompleted: self._record_evaluation,
            LossEvaluated: self._record_measurement,
            ActorStarted: self._actor_started,
            ActorFailed: self._actor_failed,
            ActorStopped: self._actor_stopped,
            RunStarted: self._record_start,
            RunResumed: self._record_resume,
            RunFinished: self._record_finish,
            OffPolicyChanged: self._record_bound_change,
        }

    def tables(self) -> dict[str, RowTable[Any]]:
        """Returns the tables by name."""
        return {
            "episodes": self.fold.table,
            "steps": self.steps,
            "batches": self.batches,
            "versions": self.versions,
            "evaluations": self.evaluations,
            "actors": self.actors,
            "bounds": self.bounds,
            "notices": self.notices,
        }

    def rows_changed_after(self, position: int) -> dict[str, list[Row]]:
        """Returns the rows of every table that changed after a position; all of them for 0."""
        return {name: table.rows_changed_after(position) for name, table in self.tables().items()}

    def receive(self, envelope: Envelope) -> None:
        """Fold the next event of the log.

        Raises:
            CorruptMessage: the envelope is damaged.
        """
        if not self.last:
            self.run, self.began, self.first = envelope.run, envelope.time, envelope.sequence
            self.fold.began = envelope.time
        # each process has its own clock: the page's time never runs backwards
        at = max(self.last_at, round(envelope.time - self.began, 3))
        decoder = self._decoders.get(envelope.subject)
        if decoder is not None and not envelope.claim:
            message = decode_whole(decoder, envelope)
            if (handler := self._handlers.get(type(message))) is not None:
                handler(message, envelope.sequence, at)
            if envelope.subject in self._shown:
                self._notice(message, envelope, at)
        self.last, self.last_at = envelope.sequence, at

    def _notice(self, message: Any, envelope: Envelope, at: float) -> None:
        if (sentence := plain_line(message)) is None:
            return
        row = NoticeRow(
            id=len(self.notices.rows),
            changed=envelope.sequence,
            position=envelope.sequence,
            at=at,
            subject=envelope.subject,
            sentence=sentence,
        )
        self.notices.add(row)

    # ------------------------------------------------------------ groups, batches, steps

    def _record_grant(self, event: CapacityGranted, position: int, at: float) -> None:
        size = int(self.recipe.get("algorithm", {}).get("group_size", 0))
        self.fold.add_groups(range(event.first_group, event.first_group + event.groups), size, position, at)

    def _record_batch(self, event: BatchFormed, position: int, at: float) -> None:
        groups = [[self.fold.into_batch(member.sequence, event.step + 1, position) for member in group] for group in event.groups]
        self.batches.add(
            BatchRow(
                id=len(self.batches.rows),
                changed=position,
                step=event.step + 1,
                position=position,
                at=at,
                oldest_version=event.oldest_version,
                groups=groups,
                dropped_trajectories=event.dropped_trajectories,
                filtered_groups=event.filtered_groups,
            )
        )

    def _record_refused_batch(self, event: BatchRefused, position: int, _: float) -> None:
        for batch in reversed(self.batches.rows):
            if batch.step == event.step + 1:
                batch.refused = f"{len(event.sequences)} sequences left out: {refused_batch(event)}"
                self.batches.touch(batch, position)
                return

    def _record_step(self, event: StepCompleted, position: int, at: float) -> None:
        for row in reversed(self.steps.rows):  # a restarted trainer repeats steps
            if row.step < event.step:
                break
            if not row.replaced:
                row.replaced = position
                self.steps.touch(row, position)
        row = StepRow(id=len(self.steps.rows), changed=position, step=event.step, position=position, at=at, metrics=event.metrics)
        self.steps.add(row)

    def _record_version(self, event: WeightsPublished, position: int, at: float) -> None:
        self.model = event.location.model or self.model
        self._version(event.weight_version, "", position, at)
        self.fold.record_published(event.weight_version, position, at)

    def _record_load(self, event: WeightsLoaded, position: int, at: float) -> None:
        self._version(event.weight_version, event.worker, position, at)

    def _version(self, version: int, worker: str, position: int, at: float) -> None:
        number = len(self.versions.rows)
        self.versions.add(VersionRow(id=number, changed=position, weight_version=version, position=position, at=at, worker=worker))

    def _record_evaluation(self, event: EvaluationCompleted, position: int, at: float) -> None:
        metrics = {
            "accuracy": event.accuracy,
            "reward_mean": event.reward_mean,
            "mean_tokens": event.mean_tokens,
            "tasks": float(event.tasks),
            "failed": float(event.failed),
        }
        self._record_held_out(event.weight_version, event.mode, metrics, position, at)

    def _record_measurement(self, event: LossEvaluated, position: int, at: float) -> None:
        self._record_held_out(event.weight_version, "examples", event.metrics, position, at)

    def _record_held_out(self, version: int, mode: str, metrics: dict[str, float], position: int, at: float) -> None:
        number = len(self.evaluations.rows)
        row = EvaluationRow(id=number, changed=position, weight_version=version, position=position, at=at, mode=mode, metrics=metrics)
        self.evaluations.add(row)

    # ------------------------------------------------------------ run and actors

    def _record_start(self, event: RunStarted, position: int, at: float) -> None:
        self.recipe = event.recipe
        self.fold.ends.begin(event.recipe)
        self._record_bound(int(event.recipe.get("staleness_gate", {}).get("max_staleness", 0)), position, at)

    def _record_resume(self, event: RunResumed, position: int, at: float) -> None:
        self.finished = None
        self.recipe = event.recipe
        self.fold.ends.begin(event.recipe)
        self._record_bound(int(event.recipe.get("staleness_gate", {}).get("max_staleness", 0)), position, at)

    def _record_finish(self, event: RunFinished, _: int, __: float) -> None:
        self.finished = event

    def _record_bound_change(self, event: OffPolicyChanged, position: int, at: float) -> None:
        if event.max_staleness != event.before:
            self._record_bound(event.max_staleness, position, at)

    def _record_bound(self, max_staleness: int, position: int, _: float) -> None:
        self.bounds.add(BoundRow(id=len(self.bounds.rows), changed=position, max_staleness=max_staleness, position=position))

    def _actor_started(self, event: ActorStarted, position: int, at: float) -> None:
        self._actor(event.actor, event.process, "started", f"process {event.pid}", position, at)

    def _actor_failed(self, event: ActorFailed, position: int, at: float) -> None:
        self._actor(event.actor, event.process, "failed", event.reason, position, at)

    def _actor_stopped(self, event: ActorStopped, position: int, at: float) -> None:
        self._actor(event.actor, event.process, "stopped", "", position, at)

    def _actor(self, actor: str, process: str, change: str, detail: str, position: int, at: float) -> None:
        number = len(self.actors.rows)
        row = ActorRow(id=number, changed=position, actor=actor, process=process, change=change, position=position, at=at, detail=detail)
        self.actors.add(row)
