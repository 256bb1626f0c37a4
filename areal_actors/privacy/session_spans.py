"""Beginnings and ends of the sessions of a log: a fold by which old sessions are deleted whole.

The log loses its beginning only, so that an event is kept as long as a session that began before it is.
"""

from __future__ import annotations

from areal_actors.messages import EpisodeAbandoned, SessionStarted, TrajectoryExported
from areal_actors.messages.episode_ends import EpisodeEnd
from areal_bus.base import Envelope

KINDS: dict[str, type[SessionStarted | EpisodeEnd]] = {
    kind.subject: kind for kind in (SessionStarted, TrajectoryExported, EpisodeAbandoned)
}


class SessionSpans:
    """Fold every event of a log, in order."""

    def __init__(self) -> None:
        self.open: dict[str, int] = {}
        """Position of the start of each open session, by its episode."""
        self.ended: dict[int, float] = {}
        """Time of the end of each ended session, in seconds since the epoch, by the position of its start."""

    def receive(self, envelope: Envelope) -> None:
        """Fold an event."""
        if (kind := KINDS.get(envelope.subject)) is None:
            return
        event = envelope.open(kind)
        if isinstance(event, SessionStarted):
            self.open[event.work.episode] = envelope.sequence
            return
        episode = event.trajectory.episode if isinstance(event, TrajectoryExported) else event.work.episode
        if (start := self.open.pop(episode, None)) is not None:
            self.ended[start] = envelope.time

    def first_kept(self, first: int, oldest: float) -> int:
        """Returns the first event that is kept: at most `first`, and at most the start of a session to keep.

        Args:
            first: event up to which all others may be deleted.
            oldest: seconds since the epoch; sessions that ended later are kept, and so are open ones.
        """
        kept = [start for start, ended in self.ended.items() if ended >= oldest]
        return min([first, *kept, *self.open.values()])

    def forget(self, first: int) -> int:
        """Forget the sessions that begin before this event; returns their number."""
        gone = [start for start in self.ended if start < first]
        for start in gone:
            del self.ended[start]
        return len(gone)
