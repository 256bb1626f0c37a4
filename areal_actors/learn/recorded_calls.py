"""Recorded sessions of runs as rows for `algorithm.name = "offline"`: judged calls, edited answers, preferences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from areal_actors.core.errors import SetupError
from areal_actors.core.values import Interaction, TrainingSequence, unpack_ids
from areal_actors.export.judged import prompt_ids
from areal_actors.history.run_events import notice_events
from areal_actors.messages import FeedbackGiven, TrajectoryExported
from areal_actors.reader.feedback import REWARD_AT_END, JudgedSession, judge_sessions, read_ledger
from areal_actors.reader.records import EndedEpisode
from areal_actors.reader.run import Run
from areal_actors.recipe.recipe import recorded_recipe
from areal_actors.sequences.build import sequences_of
from areal_actors.sequences.credit import Credit, calls_without_credit
from areal_actors.supervised.recorded_session import CallColumns, RecordedRow

Encode = Callable[[str], list[int]]
"""Returns the token ids of a text."""
ANY_AGE = -1
"""Oldest weight version of a learned token: tokens of every version are learned."""


class RecordedCall(msgspec.Struct, frozen=True):
    """A judged call, with what its reward can be predicted from."""

    row: int
    """Index of its row."""
    call: int
    """Index of the call in the row."""
    session: str
    user: str
    task: str
    prompt: tuple[int, ...]
    """Token ids before its answer."""
    reward: float


class RecordedSessions(msgspec.Struct):
    """Rows of sessions, their judged calls, and counts of the sessions that were left out."""

    rows: list[RecordedRow] = []
    calls: list[RecordedCall] = []
    left_out: Counter[str] = msgspec.field(default_factory=Counter)

    def add(self, other: RecordedSessions) -> None:
        """Append the rows and calls of another run."""
        first = len(self.rows)
        self.calls += [msgspec.structs.replace(call, row=call.row + first) for call in other.calls]
        self.rows += other.rows
        self.left_out += other.left_out

    def counts(self) -> dict[str, int]:
        """Returns the number of rows of each kind."""
        preferences = sum(row.is_preference() for row in self.rows)
        rewarded = sum(bool(row.calls) for row in self.rows)
        return {
            "rewarded": rewarded,
            "edited": len(self.rows) - preferences - rewarded,
            "preferred": preferences,
        }


def read_sessions(run: Run, *, since: float) -> RecordedSessions:
    """Returns what can be learned from a run's log.

    Args:
        run: a run or a served model, opened with its folder.
        since: seconds since the epoch; sessions that neither ended nor were judged from then on are left out.

    Raises:
        SetupError: the run has no folder, so that an erasure could not be found later.
    """
    if run.folder is None:
        raise SetupError(f"'{run.name}' is an exported log; name a run with its folder, in which erasures are recorded")
    ledger, sessions = read_ledger(run.history)
    judged = judge_sessions(run.records.ended.values(), ledger, sessions)
    judged_at: dict[str, float] = {}
    for _, time, given in notice_events(run.history, FeedbackGiven):
        judged_at[given.session] = time
    read = RecordedSessions(left_out=judged.left_out)
    recipe = recorded_recipe(run.recipe)
    writer = RowWriter(
        read,
        str(run.folder.absolute()),
        Credit.of(recipe.task),
        recipe.sampling.temperature,
        run.tokenizer.encode if run.tokenizer is not None else None,
    )
    for session in judged.sessions:
        name = sessions[session.ended.episode, session.ended.attempt]
        if max(session.ended.time, judged_at.get(name, 0.0)) < since:
            read.left_out["neither an end nor a judgement in that time"] += 1
            continue
        writer.write_session(session, name)
    for ended in judged.others:
        if ended.trajectory is not None and ended.time >= since:
            writer.write_rewarded(ended, ended.episode, "")
    return read


class RowWriter:
    """Appends the rows of sessions."""

    def __init__(
        self, read: RecordedSessions, log: str, credit: Credit, temperature: float, encode: Encode | None
    ) -> None:
        """Set what all rows share.

        Args:
            read: gets the rows.
            log: folder of the run.
            credit: of rewards to calls.
            temperature: of the log-probabilities of calls without one of their own.
            encode: of edited answers, which are left out without it.
        """
        self.read = read
        self.log = log
        self.credit = credit
        self.temperature = temperature
        self.encode = encode

    def write_session(self, session: JudgedSession, name: str) -> None:
        """Append what was judged of a session."""
        before = len(self.read.rows)
        calls = {call.id: call for call in session.ended.interactions}
        self.read.rows += self._edits(session, name, calls)
        self.read.rows += self._preferences(session, name, calls)
        if session.ended.trajectory is not None:
            self.write_rewarded(_judged_calls_only(session, self.credit), name, session.feedback.user)
        if len(self.read.rows) == before:
            self.read.left_out["no judgement"] += 1

    def write_rewarded(self, ended: EndedEpisode, name: str, user: str) -> None:
        """Append a row for each sequence of a rewarded episode."""
        assert ended.trajectory is not None
        sequences = sequences_of(ended.trajectory, 0, ANY_AGE, self.credit)
        usable = [sequence for sequence in sequences if sequence.loss_mask.any() and not sequence.images]
        if not usable:
            self.read.left_out["no sampled tokens, or images"] += 1
        for sequence in usable:
            place = len(self.read.rows)
            self.read.rows.append(self._rewarded_row(sequence, name))
            self.read.calls += [
                RecordedCall(
                    row=place,
                    call=number,
                    session=name,
                    user=user,
                    task=ended.task_id,
                    prompt=tuple(sequence.token_ids[: call.start].tolist()),
                    reward=call.reward,
                )
                for number, call in enumerate(sequence.calls)
            ]

    def _rewarded_row(self, sequence: TrainingSequence, name: str) -> RecordedRow:
        return RecordedRow(
            log=self.log,
            session=name,
            episode=sequence.episode,
            input_ids=sequence.token_ids.tolist(),
            completion_mask=sequence.loss_mask.astype(int).tolist(),
            logprobs=sequence.logprobs.tolist(),
            versions=sequence.versions.tolist(),
            calls=[
                CallColumns(call.start, call.end, call.reward, 0.0, call.truncated, call.temperature)
                for call in sequence.calls
            ],
            reward=sequence.reward,
            temperature=self.temperature,
        )

    def _edits(self, session: JudgedSession, name: str, calls: dict[str, Interaction]) -> Iterator[RecordedRow]:
        """Yields a demonstration for each edited answer; the token that ended the model's own answer ends it."""
        for given in session.feedback.judgements("edit"):
            call = calls.get(given.interaction)
            if call is None or self.encode is None:
                self.read.left_out["an edited answer without its call, or without a tokenizer"] += 1
                continue
            if given.redacted:
                self.read.left_out["an edited answer that was redacted"] += 1
                continue
            end = call.completion.ids_array().tolist()[-1:] if call.finish_reason == "stop" else []
            prompt, answer = prompt_ids(call, calls), [*self.encode(given.text), *end]
            yield RecordedRow(
                log=self.log,
                session=name,
                episode=session.ended.episode,
                input_ids=[*prompt, *answer],
                completion_mask=[0] * len(prompt) + [1] * len(answer),
            )

    def _preferences(self, session: JudgedSession, name: str, calls: dict[str, Interaction]) -> Iterator[RecordedRow]:
        for given in session.feedback.judgements("preference"):
            better, worse = calls.get(given.interaction), calls.get(given.worse)
            if better is None or worse is None or prompt_ids(better, calls) != prompt_ids(worse, calls):
                self.read.left_out["a preferred call whose prompt is not that of the other"] += 1
                continue
            if better.temperature != worse.temperature:
                self.read.left_out["a preferred call of another temperature than the other"] += 1
                continue
            sides = [better.completion, worse.completion]
            yield RecordedRow(
                log=self.log,
                session=name,
                episode=session.ended.episode,
                prompt_ids=prompt_ids(better, calls),
                chosen_ids=unpack_ids(better.completion.token_ids),
                rejected_ids=unpack_ids(worse.completion.token_ids),
                chosen_logprobs=sides[0].logprobs_array().tolist(),
                rejected_logprobs=sides[1].logprobs_array().tolist(),
                versions=[int(side.versions_array()[0]) for side in sides],
                temperature=self.temperature if better.temperature is None else better.temperature,
            )


def _judged_calls_only(session: JudgedSession, credit: Credit) -> EndedEpisode:
    """Returns the session with calls as context that no judgement reaches, if calls were judged and not the session."""
    ended, trajectory = session.ended, session.ended.trajectory
    assert trajectory is not None
    if session.feedback.reward() is not None or REWARD_AT_END in trajectory.metrics or not session.feedback.given:
        return ended
    reached = msgspec.structs.replace(credit, discount=1.0)  # by a call's own reward, or that of one that continues it
    missing = calls_without_credit(trajectory, reached)
    calls = tuple(
        msgspec.structs.replace(call, trained=False) if call.id in missing else call for call in trajectory.interactions
    )
    judged = msgspec.structs.replace(trajectory, interactions=calls)
    return msgspec.structs.replace(ended, event=TrajectoryExported(trajectory=judged))
