"""Answers of both versions in a served log: a fold that keeps their tokens while a candidate is compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from areal_actors.core.values import Interaction, unpack_ids
from areal_actors.export.judged import prompt_ids
from areal_actors.messages import (
    CandidatePublished,
    ConversationKept,
    SessionsErased,
    SessionStarted,
    ShadowAnswered,
    TrajectoryExported,
)
from areal_bus.message import Message


class SampledAnswer(NamedTuple):
    """An answer with the tokens of its prompt."""

    session: str
    prompt: list[int]
    token_ids: list[int]
    logprobs: list[float]
    temperature: float | None
    """None for the recipe's."""


class AnswerPair(NamedTuple):
    """Answers of both versions to one prompt."""

    served: SampledAnswer
    candidate: SampledAnswer


class SampledAnswers:
    """Fold every event of a served log; sessions without consent, and those erased, are left out."""

    def __init__(self) -> None:
        self._at: CandidatePublished | None = None
        self._versions: dict[str, int] = {}
        self._open: dict[str, str] = {}
        self._calls: dict[str, dict[str, Interaction]] = {}
        self._shadows: dict[str, list[ShadowAnswered]] = {}

    def fold(self, event: Message) -> None:
        """Fold an event."""
        match event:
            case CandidatePublished():
                self._publish(event)
            case SessionStarted() if event.consent and event.weight_version >= 0:
                self._versions[event.session] = event.weight_version
                self._open[event.work.episode] = event.session
            case TrajectoryExported():
                session = self._open.pop(event.trajectory.episode, "")
                self._add(session, event.trajectory.interactions)
            case ConversationKept():
                self._add(event.session, event.interactions)
            case ShadowAnswered() if event.session in self._versions:
                self._shadows.setdefault(event.session, []).append(event)
            case SessionsErased():
                for session in event.sessions:
                    for kept in (self._versions, self._calls, self._shadows):
                        kept.pop(session, None)

    def _publish(self, event: CandidatePublished) -> None:
        before, self._at = self._at, event
        if before is None or before.weight_version != event.weight_version:
            for kept in (self._versions, self._open, self._calls, self._shadows):
                kept.clear()

    def _add(self, session: str, calls: Sequence[Interaction]) -> None:
        if session in self._versions and calls:
            self._calls[session] = {call.id: call for call in calls}

    def answers(self, *, is_candidate: bool) -> Iterator[SampledAnswer]:
        """Yields the answers of one version in the order of the sessions, those of a shadow included."""
        at = self._at
        if at is None:
            return
        wanted = at.weight_version if is_candidate else at.serving_version
        for session, calls in self._calls.items():
            if self._versions[session] == wanted:
                for call in calls.values():
                    yield _answer_of(session, call, calls)
            if is_candidate:
                yield from (pair.candidate for pair in self._session_pairs(session))

    def pairs(self) -> Iterator[list[AnswerPair]]:
        """Yields the answers of both versions to the calls of each session that a shadow has answered beside."""
        for session in self._shadows:
            if pairs := list(self._session_pairs(session)):
                yield pairs

    def _session_pairs(self, session: str) -> Iterator[AnswerPair]:
        calls = self._calls.get(session, {})
        for shadow in self._shadows.get(session, ()):
            served = calls.get(shadow.interaction)
            is_current = self._at is not None and shadow.weight_version == self._at.weight_version
            if served is not None and is_current:
                yield AnswerPair(_answer_of(session, served, calls), _answer_of(session, shadow.answer, calls))


def _answer_of(session: str, call: Interaction, calls: dict[str, Interaction]) -> SampledAnswer:
    return SampledAnswer(
        session=session,
        prompt=prompt_ids(call, calls),
        token_ids=unpack_ids(call.completion.token_ids),
        logprobs=call.completion.logprobs_array().tolist(),
        temperature=call.temperature,
    )
