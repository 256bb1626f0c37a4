"""The state of a gateway that outlives it."""

from __future__ import annotations

from areal_actors.core.values import Value
from areal_actors.gateway.sessions.capacity import ExternalSessionsState
from areal_actors.gateway.sessions.kept_conversations import ConversationsState
from areal_actors.gateway.sessions.registry import RegistryState


class GatewayState(Value):
    """Snapshot of the session manager: all but live sessions, whose tokens are lost with it."""

    book: RegistryState
    outside: ExternalSessionsState
    model: str = ""
    published: int = -1
    workers: dict[str, int] = {}
    """Weight version by inference worker."""
    conversations: ConversationsState = ConversationsState()
    """Conversations of episodes without a trajectory that the log has."""
