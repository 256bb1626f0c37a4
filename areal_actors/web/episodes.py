"""The fold of attempts at episodes: from the grant of their group to the weights that they trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from areal_actors.history.parts import AbandonedPart, EpisodeWork, EvaluatedPart, ExportedPart, RecordedPart, RecordedParts, ScoredPart
from areal_actors.messages import TrajectoryDropped
from areal_actors.messages.episode_ends import EpisodeEnds, abandoned_outcome
from areal_actors.web.rows import CallRow, EpisodeRow, RowTable, SampledSpan


class EpisodeFold:
    """Attempts at episodes, with the positions of their changes."""

    def __init__(self) -> None:
        self.table = RowTable(EpisodeRow)
        self.ends = EpisodeEnds()
        self.began = 0.0
        """Time of the first event, in seconds since the epoch."""
        self._newest: dict[str, EpisodeRow] = {}
        """Newest attempt of each episode."""
        self._exported: dict[int, EpisodeRow] = {}
        """Attempts whose batch is not formed, by position of the export."""
        self._in_batch: list[EpisodeRow] = []
        """Attempts in batches whose weights are not published."""

    def handlers(self) -> dict[type[Any], Callable[[Any, int, float], None]]:
        """Returns the methods that fold the messages of episodes, by their types."""
        return {
            RecordedPart: self._record_call,
            RecordedParts: self._record_calls,
            ScoredPart: self._record_score,
            ExportedPart: self._end_by_export,
            EvaluatedPart: self._end_by_evaluation,
            AbandonedPart: self._record_abandoned,
            TrajectoryDropped: self._record_dropped,
        }

    def add_groups(self, groups: Iterable[int], size: int, position: int, at: float) -> None:
        """Add the episodes of groups that may start."""
        for group in groups:
            for member in range(size):
                self._begin(f"{group}.{member}", str(group), 1, "train", position, at)

    def into_batch(self, export: int, step: int, position: int) -> int:
        """Record that a batch has the attempt that was exported at this position; returns its id, -1 if the log does not have it."""
        row = self._exported.pop(export, None)
        if row is None:
            return -1
        row.batch, row.step = position, step
        self._in_batch.append(row)
        self.table.touch(row, position)
        return row.id

    def record_published(self, version: int, position: int, at: float) -> None:
        """Record that the weights of this version are published: the steps up to it are trained."""
        for row in self._in_batch:
            if row.step <= version:
                row.trained, row.trained_at = position, at
                self.table.touch(row, position)
        self._in_batch = [row for row in self._in_batch if row.step > version]

    def _begin(self, name: str, group: str, attempt: int, purpose: str, position: int, at: float) -> EpisodeRow:
        row = EpisodeRow(
            id=len(self.table.rows),
            changed=position,
            name=name,
            attempt=attempt,
            group=group,
            purpose=purpose,
            granted=position,
            granted_at=at,
        )
        self._newest[name] = row
        return self.table.add(row)

    def _open(self, work: EpisodeWork, position: int, at: float) -> EpisodeRow:
        """Returns the running attempt at an episode; a new one if there is none."""
        row = self._newest.get(work.episode)
        if row is None or row.ended:
            row = self._begin(work.episode, work.group, work.attempt, work.purpose, position, at)
        row.attempt, row.task, row.group = work.attempt, work.task.id, work.group
        return row

    def _record_calls(self, event: RecordedParts | ExportedPart, position: int, at: float) -> None:
        for call in event.recorded:
            self._record_call(call, position, min(at, max(round(call.time - self.began, 3), 0.0)) if call.time else at)

    def _record_call(self, event: RecordedPart, position: int, at: float) -> None:
        row = self._newest.get(event.episode)
        if row is not None and event.attempt and (row.ended or event.attempt < row.attempt):
            return  # reported after its attempt was abandoned
        if row is None or row.ended:
            row = self._begin(event.episode, event.episode.rpartition(".")[0], event.attempt or 1, event.purpose, position, at)
        spans = [SampledSpan(event.weight_version, event.completion_tokens)]
        row.calls = [*row.calls, CallRow(position, at, event.interaction, spans)]
        row.tokens += event.completion_tokens
        self.table.touch(row, position)

    def _record_score(self, event: ScoredPart, position: int, at: float) -> None:
        row = self._open(event.work, position, at)
        row.scored, row.scored_at = position, at
        self.table.touch(row, position)

    def _end_by_export(self, event: ExportedPart, position: int, at: float) -> None:
        trajectory = event.trajectory
        if not self.ends.is_first(trajectory.episode, trajectory.attempt):
            return
        self._record_calls(event, position, at)
        row = self._newest.get(trajectory.episode)
        if row is None or row.ended:
            row = self._begin(trajectory.episode, trajectory.group, trajectory.attempt, "train", position, at)
        row.task, row.attempt, row.reward = trajectory.task, trajectory.attempt, trajectory.reward
        by_interaction = {call.interaction: call for call in row.calls}
        calls = []
        for call in trajectory.interactions:
            spans = [SampledSpan(span.weight_version, span.end - span.start) for span in call.completion.versions]
            recorded = by_interaction.get(call.id)
            calls.append(CallRow(recorded.position if recorded else position, recorded.at if recorded else at, call.id, spans))
        row.calls = calls
        row.tokens = sum(span.tokens for call in calls for span in call.spans)
        self._exported[position] = row
        self._end(row, "exported", position, at)

    def _end_by_evaluation(self, event: EvaluatedPart, position: int, at: float) -> None:
        if not self.ends.is_first(event.work.episode, event.work.attempt):
            return
        row = self._open(event.work, position, at)
        row.reward, row.tokens = event.reward, event.completion_tokens
        self._end(row, "evaluated", position, at)

    def _record_abandoned(self, event: AbandonedPart, position: int, at: float) -> None:
        if not self.ends.is_first(event.work.episode, event.work.attempt, event.work.attempts_left):
            return
        row = self._open(event.work, position, at)
        row.reason = f"{event.reason}: {event.detail}"[:500]
        self._end(row, abandoned_outcome(event.reason), position, at)
        if event.work.attempts_left:
            work = event.work
            self._begin(work.episode, work.group, work.attempt + 1, work.purpose, position, at)

    def _end(self, row: EpisodeRow, outcome: str, position: int, at: float) -> None:
        row.outcome, row.ended, row.ended_at = outcome, position, at
        self.table.touch(row, position)

    def _record_dropped(self, event: TrajectoryDropped, position: int, _: float) -> None:
        row = self._newest.get(event.episode)
        if row is not None and not row.dropped:
            row.dropped, row.reason = position, event.reason
            self._exported.pop(row.ended, None)
            self.table.touch(row, position)
