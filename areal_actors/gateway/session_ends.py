"""Ends of sessions: what the log gets when a session's episode is scored, abandoned or lost."""

from __future__ import annotations

from collections.abc import Iterator

from areal_actors.core.conversation_settings import ConversationSettings
from areal_actors.core.gateways import GatewayShare
from areal_actors.gateway.model_calls import ModelCalls
from areal_actors.gateway.sessions.episode_end import Ending, EndingEvent, outcome
from areal_actors.gateway.sessions.kept_conversations import NOTHING, ConversationEvent, KeptConversations
from areal_actors.gateway.sessions.table import Session
from areal_actors.messages import EpisodeAbandoned, EpisodeScored, TrajectoryExported
from areal_actors.messages.episode_ends import abandoned_outcome, outcome_of


class SessionEnds:
    """A scored session is exported, evaluated or abandoned; without a trajectory its conversation may be kept."""

    def __init__(self, calls: ModelCalls, share: GatewayShare, conversations: ConversationSettings | None) -> None:
        """`calls` and `share` are those of the gateway; without settings no conversation is kept."""
        self.calls, self.registry, self.share = calls, calls.registry, share
        self.conversations = KeptConversations(conversations or NOTHING)

    def score(self, event: EpisodeScored, now: float) -> Iterator[EndingEvent | ConversationEvent]:
        """End the session of an episode that was scored."""
        if not self.share.owns_group(event.work.group):
            return
        session = self.registry.find(event.session)
        if session is None:
            if not self.registry.is_superseded(event.work):
                yield EpisodeAbandoned(
                    work=event.work, reason="session", detail="the gateway lost the session before it was scored"
                )
            return
        if self.registry.is_finished(session.work.episode):
            self.registry.close(session)
            return
        session = self.registry.update(session.transition("score", now))
        ending = outcome(session, event, self.calls.chat)
        if abandoned := isinstance(ending, EpisodeAbandoned):
            self.registry.close(session)
        yield from self.report(session, ending, event)
        if not abandoned:
            self.registry.close(session, finished=True)

    def report(
        self, session: Session, ending: Ending, scored: EpisodeScored | None = None
    ) -> Iterator[EndingEvent | ConversationEvent]:
        """Yields the end of a session with the calls that no event has, and its conversation if it is kept."""
        yield from self.calls.unreported.with_end(session.id, ending)
        if not isinstance(ending, TrajectoryExported):
            yield from self.conversations.keep(session, outcome_of(ending), scored)

    def abandon(self, event: EpisodeAbandoned) -> Iterator[ConversationEvent]:
        """Close the session of an attempt that another actor abandoned; yields its conversation if it is kept."""
        if (session := self.registry.mark_abandoned(event.work)) is not None:
            yield from self.conversations.keep(session, abandoned_outcome(event.reason))

    def replace(self, session: Session) -> Iterator[ConversationEvent]:
        """Open a session in place of the episode's earlier one.

        Yields the conversation of an earlier attempt, whose abandonment is in the log but has not arrived here.
        """
        earlier = self.registry.open(session)
        if earlier is not None and earlier.work.attempt < session.work.attempt:
            yield from self.conversations.keep(earlier, "abandoned")
