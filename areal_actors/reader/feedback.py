"""Ended sessions with the feedback that came on them: rewards that count in place of those set before their ends.

Sessions without consent, and those that were erased on request, are left out. Nothing is invented: a session that was
neither rewarded nor judged has no reward.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter

import msgspec

from areal_actors.core.values import Interaction, Trajectory
from areal_actors.feedback.ledger import FeedbackEvent, FeedbackLedger, SessionFeedback
from areal_actors.history.database import History
from areal_actors.history.run_events import notice_events
from areal_actors.messages import FeedbackGiven, SessionsErased, SessionStarted, TrajectoryExported
from areal_actors.messages.episode_ends import REDACTED
from areal_actors.reader.records import EndedEpisode
from areal_actors.sequences.build import apply_rewards

REWARD_AT_END = "reward_at_end"
"""Metric of a judged episode that had a reward before: that reward."""


class JudgedSession(msgspec.Struct, frozen=True):
    """An ended session, and the feedback on it."""

    ended: EndedEpisode
    """With a trajectory if it has a reward, of feedback or else of its end."""
    feedback: SessionFeedback


class JudgedSessions(msgspec.Struct):
    """Sessions of a log that may be learned from, and counts of the others."""

    sessions: list[JudgedSession] = []
    others: list[EndedEpisode] = []
    """Ended attempts that were no sessions of external agents."""
    left_out: Counter[str] = msgspec.field(default_factory=Counter)

    def ended(self) -> list[EndedEpisode]:
        """Returns all ended attempts that may be learned from, in the order of the log."""
        return sorted([*self.others, *(judged.ended for judged in self.sessions)], key=lambda ended: ended.sequence)


def read_ledger(history: History) -> tuple[FeedbackLedger, dict[tuple[str, int], str]]:
    """Returns the feedback of a log, and the session of each attempt at an episode."""
    ledger, sessions = FeedbackLedger(), dict[tuple[str, int], str]()
    sources = (notice_events(history, kind) for kind in (SessionStarted, FeedbackGiven, SessionsErased))
    events: Iterator[tuple[int, float, FeedbackEvent]] = heapq.merge(*sources, key=itemgetter(0))  # type: ignore[arg-type]
    for _, time, event in events:
        ledger.fold(event, time)
        if isinstance(event, SessionStarted):
            sessions[event.work.episode, event.work.attempt] = event.session
    return ledger, sessions


def judge_sessions(
    ended: Iterable[EndedEpisode], ledger: FeedbackLedger, sessions: Mapping[tuple[str, int], str]
) -> JudgedSessions:
    """Returns the ended attempts of a log with the feedback on their sessions, as `read_ledger` returns it."""
    judged = JudgedSessions()
    for attempt in ended:
        feedback = ledger.sessions.get(sessions.get((attempt.episode, attempt.attempt), ""))
        if feedback is None:
            judged.others.append(attempt)
        elif attempt.reason == REDACTED:
            judged.left_out["a match of a redaction rule"] += 1
        elif not feedback.is_usable():
            judged.left_out["no consent" if not feedback.has_consent else "an erasure on request"] += 1
        else:
            judged.sessions.append(JudgedSession(_with_feedback(attempt, feedback), feedback))
    return judged


def describe_feedback(history: History, episode: str, attempt: int) -> list[str]:
    """Returns a line for each judgement of a session that counts, oldest first, or the reason why none does."""
    ledger, sessions = read_ledger(history)
    feedback = ledger.sessions.get(sessions.get((episode, attempt), ""))
    if feedback is None:
        return []
    if not feedback.is_usable():
        return ["erased on request" if feedback.is_erased else "its user has not consented: nothing is learned from it"]
    return [_describe_judgement(given) for given in feedback.given]


def _describe_judgement(given: FeedbackGiven) -> str:
    judgement = {
        "reward": f"{given.name or 'reward'} {given.reward or 0.0:g}{f' ({given.label})' if given.label else ''}",
        "edit": f"edited to {given.text!r:.60}",
        "preference": f"better than {given.worse}",
    }[given.kind]
    place = given.interaction or "the session"
    judgement += f" (redacted: {', '.join(given.redacted)})" if given.redacted else ""
    by, late = f" by {given.user}" if given.user else "", ", after its end" if given.is_late else ""
    return f"{place}: {judgement}{by}{late}{f': {given.comment}' if given.comment else ''}"


def _with_feedback(ended: EndedEpisode, feedback: SessionFeedback) -> EndedEpisode:
    calls = ended.interactions
    whole, by_call = feedback.reward(), feedback.rewards_by_call()
    if not calls or (whole is None and not by_call) or (ended.conversation and ended.conversation.omitted_calls):
        return ended
    rewarded = apply_rewards(calls, whole, by_call)  # calls that were not judged keep theirs
    reward = next((call.reward for call in reversed(rewarded) if call.reward is not None), None)
    if reward is None:
        return ended
    return msgspec.structs.replace(
        ended, event=TrajectoryExported(trajectory=_trajectory(ended, rewarded, reward, feedback))
    )


def _trajectory(
    ended: EndedEpisode, calls: tuple[Interaction, ...], reward: float, feedback: SessionFeedback
) -> Trajectory:
    metrics = feedback.metrics()
    if (before := ended.trajectory) is not None:
        metrics = {**before.metrics, **metrics, REWARD_AT_END: before.reward}
        return msgspec.structs.replace(before, reward=reward, interactions=calls, metrics=metrics)
    return Trajectory(
        episode=ended.episode,
        group=ended.group,
        attempt=ended.attempt,
        task=ended.task_id,
        reward=reward,
        interactions=calls,
        metrics=metrics,
    )
