"""Conversations of episodes that have no trajectory, which nothing trains."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from areal_actors.core.values import Interaction
from areal_actors.messages.rollout import Purpose
from areal_bus.message import MonitorEvent


class ConversationKept(MonitorEvent):
    """A held-out or abandoned attempt at an episode has ended, and these are its calls (`[log.conversations]`).

    They are for readers: no batch, no step and no statistic has them.
    """

    subject: ClassVar[str] = "conversation.kept"
    session: str
    episode: str
    group: str
    attempt: int
    purpose: Purpose = "train"
    interactions: tuple[Interaction, ...]
    """Completed calls, in order of completion, without the experts of their tokens."""
    omitted_calls: int = 0
    """Number of completed calls before these that are left out, since the conversation is larger than
    `log.conversations.max_episode_kb`."""
    unanswered_calls: int = 0
    """Number of calls in flight at the end, or that the agent had left; no text of them is known."""
    size: int = 0
    """Bytes of the calls, as `log.conversations.max_mb` counts them."""

    def pack(self) -> ConversationKept:
        """Returns the event with token columns as they are sent."""
        return msgspec.structs.replace(self, interactions=tuple(call.pack() for call in self.interactions))


class ConversationsLimited(MonitorEvent):
    """The conversations of episodes that are not trained fill `log.conversations.max_mb`: no further one is kept."""

    subject: ClassVar[str] = "conversations.limited"
    conversations: int
    """Number of conversations that the log has."""
    max_mb: int
    """Bound that was reached, in MiB."""
    episode: str
    """First episode whose conversation is left out."""

    def sentence(self) -> str:
        """Returns the bound and its remedy as a sentence."""
        return (
            f"log.conversations.max_mb = {self.max_mb} is reached after {self.conversations:,} conversations of"
            f" episodes that are not trained; those from episode {self.episode} on are not in the log: raise it, and"
            " resume, to keep more"
        )
