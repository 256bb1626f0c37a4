"""External sessions as folded from the log alone: granted slots, started sessions, counts of ended ones.

The session manager knows more: slots whose `SessionStarted` it has published and not yet read back. A snapshot holds the fold, so
that a gateway that restores it and reads the rest of the log has the same state as one that reads the whole log.
"""

from __future__ import annotations

from areal_actors.core.values import Value
from areal_actors.gateway.sessions.capacity import CapacityState, ExternalCapacity, GroupSlot
from areal_actors.gateway.sessions.registry import RegistryState
from areal_actors.messages import SessionStarted


class ExternalSessionsState(Value):
    """Snapshot of an `ExternalSessionsFold`."""

    capacity: CapacityState
    started: dict[str, SessionStarted] = {}
    exported: int = 0
    abandoned: int = 0


class ExternalSessionsFold:
    """A fold over `CapacityGranted`, `SessionStarted` and the ends of episodes."""

    def __init__(self, capacity: ExternalCapacity) -> None:
        self.capacity = capacity.copy()
        self.started: dict[str, SessionStarted] = {}
        """Sessions that have not ended, by episode."""
        self.exported = self.abandoned = 0

    def session_started(self, event: SessionStarted, now: float) -> None:
        """Record a started session and take its slot."""
        self.started[event.work.episode] = event
        self.capacity.take(slot_of(event), now)

    def ended(self, episode: str, *, exported: bool) -> None:
        """Record that an episode was exported, or abandoned after all retries; idempotent."""
        self.capacity.ended(episode)
        if self.started.pop(episode, None) is not None:
            self.exported += exported
            self.abandoned += not exported

    def snapshot(self) -> ExternalSessionsState:
        """The current state."""
        return ExternalSessionsState(
            capacity=self.capacity.snapshot(), started=dict(self.started), exported=self.exported, abandoned=self.abandoned
        )

    def restore(self, state: ExternalSessionsState) -> None:
        """Restore this state."""
        self.capacity.restore(state.capacity)
        self.started = dict(state.started)
        self.exported, self.abandoned = state.exported, state.abandoned


def slot_of(event: SessionStarted) -> GroupSlot:
    """The slot of a started session."""
    return GroupSlot(task=event.work.task.id, group=int(event.work.group), member=event.member, index=event.index)


class GatewayState(Value):
    """Snapshot of the session manager: all but live sessions, whose tokens are lost with it."""

    book: RegistryState
    outside: ExternalSessionsState
    model: str = ""
    published: int = -1
    workers: dict[str, int] = {}
    """Weight version by inference worker."""
