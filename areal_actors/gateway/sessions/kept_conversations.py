"""Conversations of episodes that have no trajectory, on their way to the log.

Which are kept, and how many bytes of them, is set in `[log.conversations]`; the bytes so far are a fold over the log,
so that the bound is one of the run, also after a restart and with several gateways.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from areal_actors.core.conversation_settings import ConversationSettings
from areal_actors.core.values import Interaction, Value
from areal_actors.gateway.sessions.table import Session
from areal_actors.messages import ConversationKept, ConversationsLimited, EpisodeScored
from areal_actors.messages.episode_ends import Outcome
from areal_actors.sequences.build import apply_rewards

ConversationEvent = ConversationKept | ConversationsLimited
CALL_BYTES = 256
"""Bytes that are counted for a call beside its tokens: its ids, and the names of its fields."""
KIBIBYTE = 1024
NOTHING = ConversationSettings(keep=())


class ConversationsState(Value):
    """Conversations that the log has, as folded from it."""

    conversations: int = 0
    size: int = 0
    """Their bytes."""
    limited_at: int = -1
    """Bound in MiB that the log has as reached; -1 if it has none."""


class KeptConversations:
    """Makes the events with the conversations of ended sessions, within the bounds of the settings."""

    def __init__(self, settings: ConversationSettings = NOTHING) -> None:
        self.settings = settings
        self.logged = ConversationsState()
        """As folded from the log alone: a snapshot holds it."""
        self._unlogged: dict[str, int] = {}
        """Bytes by session, of events that have not come back from the log."""
        self._unlogged_size = 0
        """Their sum: many sessions may end at once."""
        self._limited_at = -1

    def size(self) -> int:
        """Returns the bytes of all conversations of the run, those included that are on their way to the log."""
        return self.logged.size + self._unlogged_size

    def fold(self, event: ConversationEvent) -> None:
        """Fold an event of the log."""
        logged = self.logged
        if isinstance(event, ConversationsLimited):
            self.logged = msgspec.structs.replace(logged, limited_at=event.max_mb)
            return
        self._unlogged_size -= self._unlogged.pop(event.session, 0)
        self.logged = msgspec.structs.replace(
            logged, conversations=logged.conversations + 1, size=logged.size + event.size
        )

    def keep(
        self, session: Session, outcome: Outcome, scored: EpisodeScored | None = None
    ) -> Iterator[ConversationEvent]:
        """Yields the conversation of a session that has ended without a trajectory, if the settings keep it.

        Args:
            session: its completed calls; without any there is no conversation.
            outcome: of its attempt.
            scored: its score, if it has one, for the rewards of the calls.
        """
        if not session.turns or not self._is_kept(session, outcome):
            return
        kept = self._conversation(session, scored)
        if self.size() + kept.size <= self.settings.max_mb * KIBIBYTE**2:
            self._unlogged_size += kept.size - self._unlogged.get(session.id, 0)
            self._unlogged[session.id] = kept.size
            yield kept
            return
        self._limited_at = self.settings.max_mb
        conversations = self.logged.conversations + len(self._unlogged)
        yield ConversationsLimited(
            conversations=conversations, max_mb=self.settings.max_mb, episode=session.work.episode
        )

    def _is_kept(self, session: Session, outcome: Outcome) -> bool:
        """Returns True if the settings name this kind of episode, nothing forbids it, and the bound is not reached."""
        kinds: set[str] = {outcome, "held_out"} if session.work.purpose == "evaluate" else {outcome}
        kinds |= {"unrewarded"} if session.external and not session.rewards else set()
        has_room = max(self._limited_at, self.logged.limited_at) < self.settings.max_mb
        return session.is_kept and not session.matches and has_room and bool(kinds & set(self.settings.keep))

    def _conversation(self, session: Session, scored: EpisodeScored | None) -> ConversationKept:
        rewards = {**session.rewards, **(scored.rewards if scored else {})}
        calls = apply_rewards(session.interactions(), scored.reward if scored else None, rewards)
        first, size = _first_that_fits(calls, self.settings.max_episode_kb * KIBIBYTE)
        work = session.work
        return ConversationKept(
            session=session.id,
            episode=work.episode,
            group=work.group,
            attempt=work.attempt,
            purpose=work.purpose,
            interactions=tuple(
                msgspec.structs.replace(call, routes=b"") if call.routes else call for call in calls[first:]
            ),
            omitted_calls=first,
            unanswered_calls=session.running + session.left,
            size=size,
        )


def _first_that_fits(calls: Sequence[Interaction], limit: int) -> tuple[int, int]:
    """Returns the index of the first of the last calls that are not larger together than this, and their bytes."""
    total = 0
    for index in range(len(calls) - 1, -1, -1):
        call = calls[index]
        size = CALL_BYTES + sum(map(len, (call.prompt_suffix, call.completion.token_ids, call.completion.logprobs)))
        if total + size > limit:
            return index + 1, total
        total += size
    return 0, total
