"""The feedback on each session: a fold over its start, its feedback and its erasure.

A judgement has a place: the call, the name and the user. Of several at one place the last counts; those of several
users on one call are averaged, so that a contradiction is a reward between them, and is counted.
"""

from __future__ import annotations

from statistics import fmean

import msgspec

from areal_actors.core.gateways import without_mark
from areal_actors.core.values import Value
from areal_actors.messages.feedback import FeedbackGiven, FeedbackKind, SessionsErased, content_id
from areal_actors.messages.session import Refusal, SessionStarted

SECONDS_A_DAY = 86_400.0
FeedbackEvent = SessionStarted | FeedbackGiven | SessionsErased


class SessionFeedback(Value):
    """A session and the judgements of it that count."""

    started: float
    """Seconds since the epoch."""
    user: str = ""
    """User whom the session served."""
    has_consent: bool = True
    """False if nothing may be learned from it."""
    is_erased: bool = False
    given: tuple[FeedbackGiven, ...] = ()
    """Judgements that count, oldest first."""
    is_deleted: bool = False
    """True if `log.retention` has deleted it."""

    def with_judgement(self, judgement: FeedbackGiven) -> SessionFeedback:
        """Returns the session with one more judgement, in place of an earlier one of the same place."""
        others = tuple(given for given in self.given if given.place() != judgement.place())
        return msgspec.structs.replace(self, given=(*others, judgement))

    def judgements(self, kind: FeedbackKind, name: str = "") -> list[FeedbackGiven]:
        """Returns the judgements of a kind and a name, oldest first."""
        return [given for given in self.given if given.kind == kind and given.name == name]

    def reward(self, interaction: str = "", name: str = "") -> float | None:
        """Returns the mean reward of a call over its users, or of the whole session; None without any."""
        rewards = [
            given.reward
            for given in self.judgements("reward", name)
            if given.interaction == interaction and given.reward is not None
        ]
        return fmean(rewards) if rewards else None

    def rewards_by_call(self) -> dict[str, float]:
        """Returns the mean reward of each call that was judged."""
        calls = dict.fromkeys(given.interaction for given in self.judgements("reward") if given.interaction)
        return {call: reward for call in calls if (reward := self.reward(call)) is not None}

    def metrics(self) -> dict[str, float]:
        """Returns the mean of each named judgement of the whole session."""
        names = dict.fromkeys(given.name for given in self.given if given.name and not given.interaction)
        return {name: reward for name in names if (reward := self.reward(name=name)) is not None}

    def is_contradicted(self) -> bool:
        """Returns True if users have given one call, or the session, different rewards."""
        rewards = {(given.interaction, given.reward) for given in self.judgements("reward")}
        return len(rewards) > len({interaction for interaction, _ in rewards})

    def is_usable(self) -> bool:
        """Returns True if the session may be learned from."""
        return self.has_consent and not self.is_erased


class LedgerState(Value):
    """Snapshot of a ledger."""

    sessions: dict[str, SessionFeedback] = {}
    contents: dict[str, str] = {}


class FeedbackLedger:
    """Sessions with their feedback, by name."""

    def __init__(self, state: LedgerState | None = None) -> None:
        state = state or LedgerState()
        self.sessions = dict(state.sessions)
        self.contents = dict(state.contents)
        """Digest of the content of each judgement, by its id, also of those that were replaced."""

    def snapshot(self) -> LedgerState:
        """Returns the state as it is now."""
        return LedgerState(sessions=dict(self.sessions), contents=dict(self.contents))

    def fold(self, event: FeedbackEvent, time: float) -> None:
        """Fold an event of the log; idempotent.

        Args:
            event: the event.
            time: when it was published, in seconds since the epoch.
        """
        match event:
            case SessionStarted():
                started = SessionFeedback(started=time, user=event.user, has_consent=event.consent)
                self.sessions.setdefault(event.session, started)
            case FeedbackGiven():
                session = self.sessions.get(event.session)
                if session is not None and not session.is_erased and event.id not in self.contents:
                    self.contents[event.id] = content_id(event)
                    self.sessions[event.session] = session.with_judgement(event)
            case SessionsErased():
                for name in event.sessions:  # its start may be deleted, and what was learned from it is not
                    erased = self.sessions.get(name, SessionFeedback(started=time, user=event.user, is_deleted=True))
                    self.sessions[name] = msgspec.structs.replace(erased, is_erased=True, given=())

    def delete_before(self, time: float) -> list[str]:
        """Delete what was given on the sessions that began before a time, in seconds since the epoch.

        Returns:
            The names of the sessions, which stay, with those of their users: they can still be erased.
        """
        deleted = [name for name, session in self.sessions.items() if session.started < time and not session.is_deleted]
        for name in deleted:
            for given in self.sessions[name].given:
                self.contents.pop(given.id, None)
            self.sessions[name] = msgspec.structs.replace(self.sessions[name], given=(), is_deleted=True)
        return deleted

    def with_id(self, feedback: FeedbackGiven) -> FeedbackGiven:
        """Returns feedback with an id: its own, that of the same judgement if it still counts, or a new one.

        So a user who comes back to an earlier judgement without an id changes it again.
        """
        if feedback.id:
            return feedback
        content, session = content_id(feedback), self.sessions.get(feedback.session)
        same = [given.id for given in session.given if content_id(given) == content] if session is not None else []
        names = (f"{content}-{number}" if number else content for number in range(len(self.contents) + 1))
        name = same[0] if same else next(name for name in names if name not in self.contents)
        return msgspec.structs.replace(feedback, id=name)

    def is_repeated(self, feedback: FeedbackGiven) -> bool:
        """Returns True if this feedback is recorded already."""
        return self.contents.get(feedback.id) == content_id(feedback)

    def replaces(self, feedback: FeedbackGiven) -> bool:
        """Returns True if an earlier judgement has the same place."""
        session = self.sessions.get(feedback.session)
        return session is not None and any(given.place() == feedback.place() for given in session.given)

    def refusal(self, feedback: FeedbackGiven, now: float, max_days: float) -> Refusal | None:
        """Returns the refusal of feedback that cannot count; None if it can.

        Args:
            feedback: what was sent.
            now: seconds since the epoch.
            max_days: age of a session, in days, from which on it is closed for feedback.
        """
        session = self.sessions.get(feedback.session)
        if session is None:
            reason = f"there is no session '{feedback.session}' in the log of this gateway"
            return Refusal(status=404, reason=reason, field="session_id")
        if session.is_erased or session.is_deleted:
            cause = "erased on request" if session.is_erased else "deleted, as log.retention has it"
            return Refusal(status=410, reason=f"session {feedback.session} was {cause}")
        if now - session.started > max_days * SECONDS_A_DAY:
            age = (now - session.started) / SECONDS_A_DAY
            reason = f"session {feedback.session} began {age:.1f} days ago; gateway.feedback.max_days is {max_days:g}"
            return Refusal(status=410, reason=reason)
        if feedback.id in self.contents and not self.is_repeated(feedback):
            reason = f"'id' {feedback.id} was sent before with other content; send a new id to change a judgement"
            return Refusal(status=409, reason=reason, field="id")
        for field, call in (("interaction_id", feedback.interaction), ("worse", feedback.worse)):
            if call and not call.startswith(f"{without_mark(feedback.session)}-"):
                reason = f"'{field}' is {call}, which is no call of session {feedback.session}"
                return Refusal(status=404, reason=reason, field=field)
        return None

    def session_of_call(self, call: str) -> str:
        """Returns the session of a call by the call's id; a name without a session if there is none."""
        name = call.rpartition("-")[0]
        if name in self.sessions:
            return name
        return next((session for session in self.sessions if without_mark(session) == name), name)

    def sessions_of(self, user: str) -> tuple[str, ...]:
        """Returns the sessions that served a user, in the order of their starts."""
        return tuple(name for name, session in self.sessions.items() if user and session.user == user)

    def counts(self) -> dict[str, int]:
        """Returns the numbers of sessions by what is known of them, and of judgements that came late."""
        sessions = self.sessions.values()
        return {
            "sessions": len(sessions),
            "judged": sum(bool(session.given) for session in sessions),
            "contradicted": sum(session.is_contradicted() for session in sessions),
            "late": sum(given.is_late for session in sessions for given in session.given),
            "redacted": sum(bool(given.redacted) for session in sessions for given in session.given),
            "without_consent": sum(not session.has_consent for session in sessions),
            "erased": sum(session.is_erased for session in sessions),
            "deleted": sum(session.is_deleted for session in sessions),
        }
