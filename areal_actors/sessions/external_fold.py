"""What the log alone says of sessions of agents outside the run: granted places, who has started, how many have ended.

The session manager knows more: places that it has given and whose `SessionStarted` it has not yet read back. A snapshot holds what
the log says, so that a gateway that begins with it and reads on comes to what one comes to that reads everything.
"""

from __future__ import annotations

from areal_actors.messages import SessionStarted
from areal_actors.sessions.capacity import CapacityState, ExternalCapacity, GroupSlot
from areal_actors.sessions.registry import RegistryState
from areal_actors.values import Value


class ExternalSessionsState(Value):
    """What a snapshot has of it."""

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
        """A session has taken its place."""
        self.started[event.work.episode] = event
        self.capacity.take(slot_of(event), now)

    def ended(self, episode: str, *, exported: bool) -> None:
        """An episode was exported, or abandoned for good; heard again, it counts for nothing."""
        self.capacity.ended(episode)
        if self.started.pop(episode, None) is not None:
            self.exported += exported
            self.abandoned += not exported

    def snapshot(self) -> ExternalSessionsState:
        """The state as it stands."""
        return ExternalSessionsState(
            capacity=self.capacity.snapshot(), started=dict(self.started), exported=self.exported, abandoned=self.abandoned
        )

    def restore(self, state: ExternalSessionsState) -> None:
        """Begin with this state."""
        self.capacity.restore(state.capacity)
        self.started = dict(state.started)
        self.exported, self.abandoned = state.exported, state.abandoned


def slot_of(event: SessionStarted) -> GroupSlot:
    """The place that a session has taken."""
    return GroupSlot(task=event.work.task.id, group=int(event.work.group), member=event.member, index=event.index)


class GatewayState(Value):
    """What a snapshot of the session manager has: all but live sessions, whose tokens are lost with it."""

    book: RegistryState
    outside: ExternalSessionsState
    model: str = ""
    published: int = -1
    workers: dict[str, int] = {}
    """The weight version of each inference worker."""
