"""The fold of attempts at episodes and their model calls, from the grant of their group to the weights they trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from sqlite3 import Connection

import msgspec

from areal_actors.history.episode_rows import OUTPUT_CHARACTERS, TRACE_COLUMNS, AttemptRecord, CallRecord
from areal_actors.history.parts import (
    NO_TRACE,
    AbandonedPart,
    ConversationPart,
    EpisodeWork,
    EvaluatedPart,
    ExportedPart,
    RecordedPart,
    RecordedParts,
    ScoredPart,
)
from areal_actors.history.schema import insertion
from areal_actors.messages import TrajectoryDropped
from areal_actors.messages.episode_ends import EpisodeEnds, EpisodeSet, abandoned_outcome
from areal_actors.messages.outcome import PARTIES

ABANDONED = ("abandoned", "rejected", "surplus")
"""Outcomes without a trajectory."""


class OpenAttempt(msgspec.Struct):
    """An attempt that later events may change, with its calls."""

    row: AttemptRecord
    calls: list[CallRecord] = []
    has_calls: bool = True
    """False if the calls that the database has of it were not read."""
    calls_written: bool = False
    calls_changed: bool = False

    def is_settled(self) -> bool:
        """Returns True if no ordinary event changes it any more."""
        row = self.row
        return row.ended is not None and (
            row.outcome != "exported" or row.trained is not None or row.dropped is not None
        )


class AttemptFold:
    """Folds events of episodes into rows of `attempt` and `call`; keeps those in memory that are not settled."""

    def __init__(self, database: Connection) -> None:
        self._database = database
        self.ends, self._dropped_episodes = EpisodeEnds(), EpisodeSet()
        self.repeated = 0
        """Ends that repeat an earlier one."""
        self._newest: dict[str, OpenAttempt] = {}
        """Newest attempt of each episode that is not settled."""
        self._exported: dict[int, OpenAttempt] = {}
        """Exported attempts that are in no batch, by position of the export."""
        self._in_batch: list[OpenAttempt] = []
        """Attempts in batches whose weights are not published."""
        self._changed: dict[int, OpenAttempt] = {}
        self._number = 0

    # ------------------------------------------------------------ from and to the database

    def resume(self) -> None:
        """Continue with the rows of the database."""
        for row in self._select("ended IS NOT NULL ORDER BY ended"):
            self.ends.is_first(row.episode, row.attempt, row.attempts_left)
            if row.dropped is not None:
                self._dropped_episodes.add(row.episode, self.ends.group_size)
        for row in self._select(
            "ended IS NULL OR (outcome = 'exported' AND trained IS NULL AND dropped IS NULL) ORDER BY id"
        ):
            attempt = OpenAttempt(row, has_calls=False, calls_written=True)
            self._newest[row.episode] = attempt
            if row.outcome and row.batch is None:
                self._exported[row.ended or 0] = attempt
            elif row.outcome:
                self._in_batch.append(attempt)
        (self._number,) = self._database.execute("SELECT coalesce(max(id), 0) FROM attempt").fetchone()

    def write(self) -> None:
        """Write the changed rows, and forget settled attempts."""
        changed = list(self._changed.values())
        self._database.executemany(
            insertion(AttemptRecord), map(msgspec.structs.astuple, (attempt.row for attempt in changed))
        )
        rewritten = [attempt for attempt in changed if attempt.calls_changed]
        self._database.executemany(
            "DELETE FROM call WHERE attempt_id = ?", [(one.row.id,) for one in rewritten if one.calls_written]
        )
        self._database.executemany(
            insertion(CallRecord), (msgspec.structs.astuple(call) for attempt in rewritten for call in attempt.calls)
        )
        for attempt in rewritten:
            attempt.calls_written, attempt.calls_changed = True, False
        for attempt in changed:
            if attempt.is_settled() and self._newest.get(attempt.row.episode) is attempt:
                del self._newest[attempt.row.episode]
        self._changed.clear()

    def _select(self, condition: str, *values: object) -> Iterator[AttemptRecord]:
        # Of this class alone
        rows = self._database.execute(f"SELECT * FROM attempt WHERE {condition}", values)  # noqa: S608
        return (AttemptRecord(**dict(zip(AttemptRecord.__struct_fields__, row, strict=True))) for row in rows)

    def _find(self, episode: str) -> OpenAttempt | None:
        """Returns the newest attempt at an episode, also a settled one."""
        attempt = self._newest.get(episode)
        return attempt or (
            self._load_stored("episode = ? ORDER BY id DESC", episode) if self.ends.ended.has(episode) else None
        )

    def _load_stored(self, condition: str, *values: object) -> OpenAttempt | None:
        """Returns the first attempt with this property, as it was changed or as the database has it."""
        row = next(self._select(f"{condition} LIMIT 1", *values), None)
        if row is None:
            return None
        return self._changed.get(row.id) or OpenAttempt(row, has_calls=False, calls_written=True)

    def _calls(self, attempt: OpenAttempt) -> list[CallRecord]:
        """Returns the calls of an attempt, which are going to change."""
        if not attempt.has_calls:
            rows = self._database.execute("SELECT * FROM call WHERE attempt_id = ? ORDER BY number", (attempt.row.id,))
            attempt.calls = [CallRecord(**dict(zip(CallRecord.__struct_fields__, row, strict=True))) for row in rows]
            attempt.has_calls = True
        attempt.calls_changed = True
        return attempt.calls

    # ------------------------------------------------------------ groups and batches

    def grant(self, groups: Iterable[int], size: int, position: int, time: float) -> None:
        """Begin the episodes of groups that may start."""
        for group in groups:
            for member in range(size):
                self._begin(f"{group}.{member}", str(group), 1, "train", position, time)

    def put_into_batch(self, export: int, step: int, position: int) -> None:
        """Record that a batch has the trajectory that was exported at this position."""
        attempt = self._exported.pop(export, None) or next(
            (one for one in self._in_batch if one.row.ended == export), None
        )
        attempt = attempt or self._load_stored("ended = ?", export)
        if attempt is not None:
            attempt.row.batch, attempt.row.step = position, step
            if attempt not in self._in_batch:
                self._in_batch.append(attempt)
            self._touch(attempt, position)

    def publish(self, version: int, position: int, time: float) -> None:
        """Record that the weights of this version are published: the steps up to it are trained."""
        for attempt in self._in_batch:
            if (attempt.row.step or 0) <= version:
                attempt.row.trained, attempt.row.trained_at = position, time
                self._touch(attempt, position)
        self._in_batch = [attempt for attempt in self._in_batch if attempt.row.trained is None]

    # ------------------------------------------------------------ attempts

    def _begin(self, episode: str, group: str, number: int, purpose: str, position: int, time: float) -> OpenAttempt:
        self._number += 1
        row = AttemptRecord(
            id=self._number,
            changed=position,
            episode=episode,
            attempt=number,
            group_=group,
            purpose=purpose,
            granted=position,
            granted_at=time,
        )
        attempt = self._newest[episode] = OpenAttempt(row)
        self._changed[row.id] = attempt
        return attempt

    def _open(self, work: EpisodeWork, position: int, time: float) -> OpenAttempt:
        """Returns the running attempt at an episode; a new one if there is none."""
        attempt = self._find(work.episode)
        if attempt is None or attempt.row.ended is not None:
            attempt = self._begin(work.episode, work.group, work.attempt, work.purpose, position, time)
        row = attempt.row
        row.attempt, row.task, row.group_ = work.attempt, work.task.id, work.group
        return attempt

    def _touch(self, attempt: OpenAttempt, position: int) -> None:
        attempt.row.changed = position
        self._changed[attempt.row.id] = attempt

    def add_calls(self, event: RecordedParts | ExportedPart, position: int, time: float) -> None:
        """Add completed calls to their attempts."""
        for call in event.recorded:
            self.add_call(call, position, call.time or time)

    def add_call(self, event: RecordedPart, position: int, time: float) -> None:
        """Add a completed call to its attempt; a call may be reported after its attempt was abandoned."""
        attempt = self._find(event.episode)
        if (
            attempt is not None
            and event.attempt
            and (attempt.row.ended is not None or event.attempt < attempt.row.attempt)
        ):
            if event.attempt > attempt.row.attempt:
                attempt = None
            else:
                attempt = self._abandoned(event.episode, event.attempt)
                if attempt is None:
                    return
        elif attempt is not None and attempt.row.ended is not None:
            attempt = None
        if attempt is None:
            attempt = self._begin(
                event.episode, event.episode.rpartition(".")[0], event.attempt or 1, event.purpose, position, time
            )
        calls, row = self._calls(attempt), attempt.row
        calls.append(_recorded_call(event, row.id, len(calls) + 1, position, time))
        row.calls, version = len(calls), event.weight_version
        row.prompt_tokens += event.prompt_tokens or 0
        row.completion_tokens += event.completion_tokens
        row.oldest_version = version if row.oldest_version is None else min(version, row.oldest_version)
        row.newest_version = version if row.newest_version is None else max(version, row.newest_version)
        self._touch(attempt, position)

    def _abandoned(self, episode: str, number: int) -> OpenAttempt | None:
        """Returns an attempt that was abandoned, which the database may not have yet."""
        recent = [one for one in self._changed.values() if (one.row.episode, one.row.attempt) == (episode, number)]
        abandoned = [attempt for attempt in recent if attempt.row.outcome in ABANDONED]
        condition = f"episode = ? AND attempt = ? AND outcome IN {ABANDONED} ORDER BY id DESC"
        return abandoned[-1] if abandoned else self._load_stored(condition, episode, number)

    def _total(self, attempt: OpenAttempt, position: int) -> None:
        """Sum up the calls of an exported attempt."""
        row = attempt.row
        row.calls = len(attempt.calls)
        row.prompt_tokens = sum(call.prompt_tokens or 0 for call in attempt.calls)
        row.completion_tokens = sum(call.completion_tokens for call in attempt.calls)
        row.oldest_version = min(
            (call.oldest_version for call in attempt.calls if call.oldest_version is not None), default=None
        )
        row.newest_version = max(
            (call.newest_version for call in attempt.calls if call.newest_version is not None), default=None
        )
        self._touch(attempt, position)

    def score(self, event: ScoredPart, position: int, time: float) -> None:
        """Record a score."""
        attempt = self._open(event.work, position, time)
        attempt.row.scored, attempt.row.scored_at = position, time
        attempt.row.output = first_characters(event.output)
        self._touch(attempt, position)

    def export(self, event: ExportedPart, position: int, time: float) -> None:
        """End an attempt by its trajectory."""
        trajectory = event.trajectory
        if not self._is_first(trajectory.episode, trajectory.attempt):
            return
        known = self._newest.get(trajectory.episode)
        if event.recorded:
            self.add_calls(event, position, time)
            known = self._newest.get(trajectory.episode)
        if known is None or known.row.ended is not None:
            known = self._begin(trajectory.episode, trajectory.group, trajectory.attempt, "train", position, time)
        row = known.row
        row.task, row.attempt, row.group_ = trajectory.task, trajectory.attempt, trajectory.group
        row.reward, row.ended_by, row.end_cause = trajectory.reward, trajectory.ended_by, trajectory.end_cause
        row.metrics = _json(trajectory.metrics)
        recorded = {call.interaction: call for call in self._calls(known)}
        known.calls = list(_exported_calls(event, recorded, row.id, position, time))
        self._total(known, position)
        self._exported[position] = known
        self._end(known, "exported", position, time)

    def evaluate(self, event: EvaluatedPart, position: int, time: float) -> None:
        """End a held-out attempt by its score."""
        if not self._is_first(event.work.episode, event.work.attempt):
            return
        attempt = self._open(event.work, position, time)
        row = attempt.row
        row.reward, row.completion_tokens, row.output = (
            event.reward,
            event.completion_tokens,
            first_characters(event.output),
        )
        row.ended_by, row.end_cause, row.metrics = event.ended_by, event.end_cause, _json(event.metrics)
        if row.oldest_version is None and event.sampled_by:
            row.oldest_version, row.newest_version = min(event.sampled_by), max(event.sampled_by)
        self._end(attempt, "evaluated", position, time)

    def abandon(self, event: AbandonedPart, position: int, time: float) -> None:
        """End an attempt that was abandoned, and begin the next one if the episode goes on."""
        work = event.work
        if not self._is_first(work.episode, work.attempt, work.attempts_left):
            return
        attempt = self._open(work, position, time)
        row = attempt.row
        row.reason, row.detail, row.attempts_left = event.reason, event.detail, work.attempts_left
        row.ended_by = PARTIES.get(event.reason, "")
        self._end(attempt, abandoned_outcome(event.reason), position, time)
        if work.attempts_left:
            self._begin(work.episode, work.group, work.attempt + 1, work.purpose, position, time)

    def keep_conversation(self, event: ConversationPart, position: int, _: float) -> None:
        """Record the event with the conversation of an attempt that ended without a trajectory."""
        attempt = self._find(event.episode)
        if attempt is None or attempt.row.attempt != event.attempt or attempt.row.ended is None:
            attempt = self._abandoned(event.episode, event.attempt)
        if attempt is not None:
            attempt.row.conversation, attempt.row.conversation_size = position, event.size
            self._touch(attempt, position)

    def drop(self, event: TrajectoryDropped, position: int, _: float) -> None:
        """Record that a trajectory will not be trained."""
        if not self._dropped_episodes.add(event.episode, self.ends.group_size):
            return
        attempt = self._find(event.episode)
        if attempt is not None:
            attempt.row.dropped, attempt.row.drop_reason = position, event.reason
            self._exported.pop(attempt.row.ended or 0, None)
            self._touch(attempt, position)

    def _is_first(self, episode: str, number: int, attempts_left: int = 0) -> bool:
        first = self.ends.is_first(episode, number, attempts_left)
        self.repeated += not first
        return first

    def _end(self, attempt: OpenAttempt, outcome: str, position: int, time: float) -> None:
        attempt.row.outcome, attempt.row.ended, attempt.row.ended_at = outcome, position, time
        self._touch(attempt, position)


def first_characters(output: str) -> str:
    """Returns the beginning of a text, on one line."""
    return " ".join(output[: 4 * OUTPUT_CHARACTERS].split())[:OUTPUT_CHARACTERS]


def _recorded_call(event: RecordedPart, attempt: int, number: int, position: int, time: float) -> CallRecord:
    client = event.trace or NO_TRACE
    return CallRecord(
        attempt_id=attempt,
        number=number,
        interaction=event.interaction,
        parent=event.parent,
        prefix=event.prefix,
        continues=event.continues,
        recorded=position,
        at=time,
        prompt_tokens=event.prompt_tokens,
        completion_tokens=event.completion_tokens,
        oldest_version=event.weight_version,
        newest_version=event.weight_version,
        finish_reason=event.finish_reason,
        trained=int(event.trained),
        prefix_break_reason=event.prefix_break_reason,
        tool_call_error=event.tool_call_error,
        trace=client.trace,
        trace_span=client.span,
        trace_state=client.state,
        baggage=_json(client.baggage) if client.baggage else "",
    )


def _exported_calls(
    event: ExportedPart, recorded: dict[str, CallRecord], attempt: int, position: int, time: float
) -> Iterator[CallRecord]:
    """Yields the calls of a trajectory, with what was reported of them before."""
    for number, call in enumerate(event.trajectory.interactions, start=1):
        known = recorded.get(call.id)
        spans = call.completion.versions
        yield CallRecord(
            attempt_id=attempt,
            number=number,
            interaction=call.id,
            parent=call.parent,
            prefix=call.prefix,
            continues=known.continues if known else "",
            recorded=known.recorded if known else position,
            at=known.at if known else time,
            prompt_tokens=known.prompt_tokens if known else None,
            completion_tokens=spans[-1].end if spans else 0,
            oldest_version=min((span.weight_version for span in spans), default=None),
            newest_version=max((span.weight_version for span in spans), default=None),
            spans=_json([(span.weight_version, span.end - span.start) for span in spans]) if len(spans) > 1 else "",
            finish_reason=call.finish_reason,
            reward=call.reward,
            trained=int(call.trained),
            worker=call.worker,
            role=call.role,
            prefix_break_reason=known.prefix_break_reason if known else "",
            tool_call_error=known.tool_call_error if known else "",
            tokens=position,
            **({name: getattr(known, name) for name in TRACE_COLUMNS} if known else {}),
        )


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode() if value else "{}"
