"""The session manager of external agents: it also records feedback on their sessions, while they run and later.

Feedback is in the log before it is acknowledged. What was sent twice is recorded once; what was forged, contradicts its
own id, or is about an unknown or erased session is refused by name.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any

import msgspec

from areal_actors.feedback.ledger import FeedbackLedger, LedgerState
from areal_actors.gateway.gateway_state import GatewayState
from areal_actors.gateway.session_manager import SessionManager
from areal_actors.gateway.sessions.kept_conversations import ConversationEvent
from areal_actors.gateway.sessions.table import CLOSED_STATES
from areal_actors.gateway.sharing import unavailable
from areal_actors.messages import (
    ActorStarted,
    EpisodeAbandoned,
    EraseSessions,
    ErasureRecorded,
    FeedbackGiven,
    FeedbackRecorded,
    GiveFeedback,
    LogTrimmed,
    Refusal,
    RewardSet,
    SessionsErased,
    SessionStarted,
    SetReward,
    ToolsRefused,
    WeightsPublished,
)
from areal_actors.messages.episode_ends import REDACTED
from areal_actors.privacy.redacted_messages import receive_redacted
from areal_actors.privacy.redaction import Redaction
from areal_actors.privacy.screened_calls import CallScreen
from areal_actors.runtime.actor import Context, Emits, on
from areal_bus.message import Message


class FeedbackGatewayState(GatewayState):
    """Snapshot of a session manager that records feedback."""

    feedback: LedgerState = LedgerState()
    redacted: int = 0


class FeedbackSessionManager(SessionManager):
    """Every gateway of a run folds all feedback, so that each can take feedback on every session."""

    state_type = FeedbackGatewayState

    def __init__(self, *arguments: Any, redaction: Redaction | None = None, **options: Any) -> None:
        """`arguments` and the other options are those of every session manager; `redaction` has the recipe's rules."""
        super().__init__(*arguments, **options)
        self.ledger = FeedbackLedger()
        self.newest: WeightsPublished | None = None
        self.redacted = 0
        """Ended sessions in which a rule of `log.redaction` matched."""
        self.redaction = redaction
        if redaction is not None:
            self.calls.screen = CallScreen(redaction).apply

    @classmethod
    def kind(cls) -> str:
        """Returns the name of every session manager."""
        return SessionManager.kind()

    def snapshot(self) -> FeedbackGatewayState:
        """The state for a successor gateway."""
        state = super().snapshot()
        fields = {name: getattr(state, name) for name in state.__struct_fields__}
        return FeedbackGatewayState(**fields, feedback=self.ledger.snapshot(), redacted=self.redacted)

    def restore(self, state: GatewayState) -> None:
        """Restore the state of a predecessor."""
        super().restore(state)
        if isinstance(state, FeedbackGatewayState):
            self.ledger, self.redacted = FeedbackLedger(state.feedback), state.redacted

    def receive(self, message: Message, context: Context) -> AsyncGenerator[Message, None]:
        """Run the handler of a message; where the recipe has rules, on the message as it may be written."""
        if self.redaction is None:
            return super().receive(message, context)
        return receive_redacted(self.redaction, super().receive, message, context)

    @on
    def give_feedback(self, request: GiveFeedback, context: Context) -> Iterator[FeedbackGiven | FeedbackRecorded]:
        """Record a judgement, once."""
        feedback = request.feedback
        session = feedback.session or self.ledger.session_of_call(feedback.interaction)
        feedback = self.ledger.with_id(msgspec.structs.replace(feedback, session=session))
        feedback = msgspec.structs.replace(feedback, is_late=self.registry.find(session) is None)
        if refused := self._not_yet() or self.ledger.refusal(feedback, context.now, self.config.feedback.max_days):
            yield FeedbackRecorded(refused=refused)
        elif self.ledger.is_repeated(feedback):
            yield FeedbackRecorded(id=feedback.id, state="repeated")
        else:
            replaced = self.ledger.replaces(feedback)
            yield feedback
            self.ledger.fold(feedback, context.now)
            yield FeedbackRecorded(id=feedback.id, state="replaced" if replaced else "recorded")

    @on
    def set_reward(  # type: ignore[override]
        self, request: SetReward, context: Context
    ) -> Iterator[FeedbackGiven | RewardSet]:
        """Set a reward; after the end of a session of a served model it is feedback, and takes no spans."""
        live = self.registry.find(request.session)
        if request.spans or not self.external.is_served() or (live is not None and live.state not in CLOSED_STATES):
            yield from super().set_reward(request, context)
            return
        reward = FeedbackGiven(
            id="", session=request.session, kind="reward", interaction=request.interaction, reward=request.reward
        )
        for message in self.give_feedback(GiveFeedback(feedback=reward), context):
            if isinstance(message, FeedbackGiven):
                yield message
            elif message.refused is not None:
                yield RewardSet(error=message.refused.reason, error_status=message.refused.status)
            else:
                yield RewardSet()

    @on
    def erase_sessions(self, request: EraseSessions, context: Context) -> Iterator[SessionsErased | ErasureRecorded]:
        """Erase a session, or those of a user: nothing is learned from them from here on."""
        sessions = self.ledger.sessions_of(request.user) or tuple(filter(None, (request.session,)))
        known = tuple(session for session in sessions if session in self.ledger.sessions)
        if refused := self._not_yet():
            yield ErasureRecorded(refused=refused)
        elif not known:
            name = f"session '{request.session}'" if request.session else f"session of user '{request.user}'"
            field = "session_id" if request.session else "user"
            yield ErasureRecorded(refused=Refusal(status=404, reason=f"the log has no {name}", field=field))
        else:
            erased = SessionsErased(
                sessions=tuple(session for session in known if not self.ledger.sessions[session].is_erased),
                user=request.user,
                reason=request.reason,
            )
            if erased.sessions:
                yield erased
                self.sessions_erased(erased, context)
            yield ErasureRecorded(sessions=known)

    def _not_yet(self) -> Refusal | None:
        """The refusal while the log is being folded: a session may be unknown only for now."""
        return None if self.external.caught_up else unavailable("the gateway is reading the run's log")

    # ---------------------------------------------------------------- events of the log

    @on
    async def weights_published(self, event: WeightsPublished) -> Emits[ToolsRefused]:
        """A served model may be another one than on earlier days: only the newest is loaded."""
        self.newest = event
        if self.external.is_served() and not self.external.caught_up:
            return
        async for refused in self._load_newest():
            yield refused

    @on
    async def actor_started(self, event: ActorStarted, context: Context) -> Emits[EpisodeAbandoned | ToolsRefused]:  # type: ignore[override]
        """The log is folded: what was lost is abandoned, and the served model is loaded."""
        was_caught_up = self.external.caught_up
        async for lost in super().actor_started(event, context):
            yield lost
        if self.external.caught_up and not was_caught_up and self.external.is_served():
            async for refused in self._load_newest():
                yield refused

    @on
    async def episode_abandoned(self, event: EpisodeAbandoned, context: Context) -> Emits[ConversationEvent]:
        """Count the sessions of which nothing is kept."""
        self.redacted += event.reason == REDACTED
        async for kept in super().episode_abandoned(event, context):
            yield kept

    async def _load_newest(self) -> AsyncIterator[ToolsRefused]:
        if self.newest is not None:
            if self.newest.location.model != self.model:
                self.calls.served = None
            async for refused in super().weights_published(self.newest):
                yield refused

    @on
    async def session_started(self, event: SessionStarted, context: Context) -> None:
        """Feedback on it is taken from here on."""
        await super().session_started(event, context)
        self.ledger.fold(event, context.now)

    @on
    def feedback_given(self, event: FeedbackGiven, context: Context) -> None:
        """Also what other gateways have recorded."""
        self.ledger.fold(event, context.now)

    @on
    def log_trimmed(self, event: LogTrimmed) -> None:
        """Forget what was given on deleted sessions; their names and users stay, so that they can still be erased."""
        self.registry.forget_finished(self.ledger.delete_before(event.before))

    @on
    def sessions_erased(self, event: SessionsErased, context: Context) -> None:
        """Live ones go on, and neither their conversations nor their rewards are kept at their ends."""
        self.ledger.fold(event, context.now)
        for name in event.sessions:
            if (session := self.registry.find(name)) is not None:
                self.registry.update(msgspec.structs.replace(session, is_kept=False))

    def status(self) -> dict[str, float | str]:
        """Status of every gateway, and the numbers of judged, contradicted, erased and redacted sessions."""
        counts = {f"feedback_{name}": float(count) for name, count in self.ledger.counts().items() if count}
        redacted = {"redacted_sessions": float(self.redacted)} if self.redacted else {}
        return {**super().status(), **counts, **redacted}
