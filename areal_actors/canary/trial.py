"""The trial of a candidate: a fold over the log that assigns sessions and compares their rewards and guard metrics.

A session counts once, by its first reward: that of its end, or of the first feedback on it. What is judged again later
changes exports, and not the test, whose limits hold for values in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from areal_actors.canary.assignment import is_in_share
from areal_actors.canary.comparison import ComparisonState, MetricComparison, block_sizes
from areal_actors.core.values import Interaction, Value
from areal_actors.messages import (
    CandidateDecided,
    CandidatePublished,
    ComparedMetric,
    ConversationKept,
    EpisodeAbandoned,
    FeedbackGiven,
    SessionsErased,
    SessionStarted,
    ShadowAnswered,
    TrajectoryExported,
    WeightsPublished,
)
from areal_bus.message import Message

REWARD = "reward"
GUARDS = ("length", "truncated", "tool_errors")
"""Means over the answers of a session: length as a share of the longest allowed, cut answers, faulty tool calls."""
EVENTS = (
    *(WeightsPublished, CandidatePublished, CandidateDecided, SessionStarted, TrajectoryExported, ConversationKept),
    *(EpisodeAbandoned, FeedbackGiven, SessionsErased, ShadowAnswered),
)
"""Events that a trial folds."""


class TrialState(Value):
    """Snapshot of a trial."""

    serving: int = -1
    published: CandidatePublished | None = None
    decided: CandidateDecided | None = None
    versions: dict[str, int] = {}
    open: dict[str, str] = {}
    counted: dict[str, tuple[str, ...]] = {}
    comparisons: dict[str, ComparisonState] = {}


class CandidateTrial:
    """The candidate of a log, its sessions, and what their rewards show so far."""

    def __init__(self, seed: int = 0, state: TrialState | None = None) -> None:
        self.seed = seed
        self.serving = -1
        """Version of the served weights; -1 before they are published."""
        self.published: CandidatePublished | None = None
        self.decided: CandidateDecided | None = None
        self.versions: dict[str, int] = {}
        """Version of every session since the candidate was published."""
        self.open: dict[str, str] = {}
        """Sessions that have not ended, by episode."""
        self.counted: dict[str, dict[str, None]] = {REWARD: {}, "guards": {}}
        """Sessions that the comparisons have, or may not have."""
        self.comparisons: dict[str, MetricComparison] = {}
        if state is not None:
            self._restore(state)

    # ---------------------------------------------------------------- weights of sessions

    def is_open(self) -> bool:
        """Returns True if a candidate is compared and nothing is decided."""
        return self.published is not None and self.decided is None

    def version_for(self, session: str) -> int:
        """Returns the version whose weights answer a new session."""
        if self.published is None:
            return self.serving
        if self.decided is not None:
            return self.published.weight_version if self.decided.decision == "promoted" else self.serving
        if self.published.mode == "shadow":
            return self.serving
        return self.published.weight_version if self.is_in_share(session) else self.serving

    def is_in_share(self, session: str) -> bool:
        """Returns True if a session is of the candidate's share."""
        at = self.published
        return at is not None and is_in_share(self.seed, at.weight_version, session, at.share)

    def open_sessions(self, weight_version: int) -> list[str]:
        """Returns the sessions with these weights that have not ended."""
        return [session for session in self.open.values() if self.versions.get(session) == weight_version]

    # ---------------------------------------------------------------- the fold

    def fold(self, event: Message) -> None:  # noqa: C901 - one line for each kind
        """Fold an event of the log."""
        match event:
            case WeightsPublished():
                self.serving = event.weight_version
            case CandidatePublished():
                self._publish(event)
            case CandidateDecided():
                self._decide(event)
            case SessionStarted():
                self._start(event)
            case TrajectoryExported():
                self._end(event.trajectory.episode, event.trajectory.reward, event.trajectory.interactions)
            case EpisodeAbandoned():
                self._forget(self.open.pop(event.work.episode, ""))
            case ConversationKept():
                self._measure(event.session, event.interactions)
            case FeedbackGiven(kind="reward", name="", reward=float() | int() as reward):
                self._reward(event.session, float(reward))
            case SessionsErased():
                for session in event.sessions:
                    self._leave_out(session)
            case ShadowAnswered():
                self._compare_shadow(event)

    def _publish(self, event: CandidatePublished) -> None:
        before = self.published
        self.published, self.serving = event, event.serving_version
        if before is not None and msgspec.structs.replace(before, share=event.share) == event:
            return
        self.decided = None
        self.versions, self.counted = {}, {REWARD: {}, "guards": {}}
        self.comparisons = _comparisons_of(event)

    def _decide(self, event: CandidateDecided) -> None:
        earlier = self.decided.decision if self.decided is not None else ""
        is_new = not earlier or (earlier == "promoted" and event.decision == "rolled back")
        if self.published is not None and event.weight_version == self.published.weight_version and is_new:
            self.decided = event

    def _start(self, event: SessionStarted) -> None:
        if event.weight_version < 0:
            return
        self.versions[event.session] = event.weight_version
        self.open[event.work.episode] = event.session
        if not event.consent:
            self._leave_out(event.session)

    def _leave_out(self, session: str) -> None:
        for counted in self.counted.values():
            counted[session] = None

    def _end(self, episode: str, reward: float, calls: Sequence[Interaction]) -> None:
        if (session := self.open.pop(episode, None)) is not None:
            self._reward(session, reward)
            self._measure(session, calls)
            self._forget(session)

    def _forget(self, session: str) -> None:
        """Drop the version of an ended session that nothing is compared with any more."""
        if self.decided is not None:
            self.versions.pop(session, None)

    def _side(self, session: str, kind: str) -> bool | None:
        """Returns True for a session of the candidate, False for one of the served version, None for one to skip."""
        at = self.published
        if at is None or self.decided is not None or at.mode == "shadow" or session in self.counted[kind]:
            return None
        version = self.versions.get(session)
        return {at.weight_version: True, at.serving_version: False}.get(-1 if version is None else version)

    def _reward(self, session: str, reward: float) -> None:
        if (side := self._side(session, REWARD)) is not None and self.published is not None:
            self.counted[REWARD][session] = None
            self.comparisons[REWARD].add(reward, is_candidate=side, blocks=block_sizes(self.published.share))

    def _measure(self, session: str, calls: Sequence[Interaction]) -> None:
        if not calls or (side := self._side(session, "guards")) is None or self.published is None:
            return
        self.counted["guards"][session] = None
        at, blocks = self.published, block_sizes(self.published.share)
        answers = [(len(call.completion), call.finish_reason == "length", bool(call.call_problem)) for call in calls]
        for name, total in zip(GUARDS, map(sum, zip(*answers, strict=True)), strict=True):
            value = total / len(answers) / (at.max_tokens if name == "length" else 1)
            self.comparisons[name].add(value, is_candidate=side, blocks=blocks)

    def _compare_shadow(self, event: ShadowAnswered) -> None:
        at = self.published
        if at is None or self.decided is not None or event.weight_version != at.weight_version:
            return
        answer = event.answer
        served = (event.served_tokens / at.max_tokens, event.served_truncated, event.served_tool_error)
        its = (len(answer.completion) / at.max_tokens, answer.finish_reason == "length", bool(answer.call_problem))
        for name, before, after in zip(GUARDS, served, its, strict=True):
            self.comparisons[name].add_pair(float(before), float(after))

    # ---------------------------------------------------------------- results

    def metrics(self) -> tuple[ComparedMetric, ...]:
        """Returns the comparison of each metric, the reward first."""
        return tuple(comparison.metric() for comparison in self.comparisons.values())

    def rewarded(self) -> tuple[int, int]:
        """Returns the rewarded sessions of the candidate and of the served version."""
        counts = self.comparisons[REWARD].counts if self.comparisons else [0, 0]
        return counts[1], counts[0]

    def snapshot(self) -> TrialState:
        """Returns the state as it is now."""
        return TrialState(
            serving=self.serving,
            published=self.published,
            decided=self.decided,
            versions=dict(self.versions),
            open=dict(self.open),
            counted={kind: tuple(sessions) for kind, sessions in self.counted.items()},
            comparisons={name: comparison.snapshot() for name, comparison in self.comparisons.items()},
        )

    def _restore(self, state: TrialState) -> None:
        self.serving, self.published, self.decided = state.serving, state.published, state.decided
        self.versions, self.open = dict(state.versions), dict(state.open)
        self.counted |= {kind: dict.fromkeys(sessions) for kind, sessions in state.counted.items()}
        self.comparisons = _comparisons_of(state.published) if state.published is not None else {}
        for name, comparison in self.comparisons.items():
            comparison.restore(state.comparisons[name])


def _comparisons_of(event: CandidatePublished) -> dict[str, MetricComparison]:
    """Returns the comparisons of a candidate; each limit has its part of the significance."""
    significance = event.significance / (1 + len(event.limits))
    reward = MetricComparison(REWARD, significance, threshold=event.least_difference, bounds=event.reward_range)
    guards = {name: MetricComparison(name, significance, threshold=event.limits.get(name, 0.0)) for name in GUARDS}
    return {REWARD: reward, **guards}
