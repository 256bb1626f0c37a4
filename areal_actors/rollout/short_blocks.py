"""Finds the line of agents' code that takes much of an event loop in blocks too short to be seen alone.

Forty episodes that each compute for 30 ms hold up all others as one block of 1.2 s does, but the loop answers between.
"""

from __future__ import annotations

from areal_actors.messages import EventLoopBlocked
from areal_actors.rollout.blocked_interval import BlockedInterval
from areal_actors.rollout.stack import CodeLocation

WINDOW_SECONDS = 5.0
LEAST_SHARE = 0.6
"""Share of a window that a line takes at least to be reported: a loop that is free half of the time limits no run."""


class ShortBlocks:
    """Samples of a loop that answers, over windows."""

    def __init__(self, now: float, waited: float) -> None:
        """Begin a window.

        Args:
            now: monotonic time.
            waited: seconds for which the loop's thread has waited for a processor.
        """
        self._began, self._waited = now, waited
        self._interval = BlockedInterval(now, waited)

    def add_sample(self, at: CodeLocation | None, episode: str) -> None:
        """Add a look at the thread of a loop that does not wait for events."""
        if at is not None and at.is_user_code and not at.is_awaited:
            self._interval.add_sample(at, episode)

    def end_window(self, now: float, waited: float, look_seconds: float) -> EventLoopBlocked | None:
        """Return a report of the line seen most often, and begin the next window; None if it is open or no line is.

        Args:
            now: monotonic time.
            waited: seconds for which the loop's thread has waited for a processor.
            look_seconds: time between two samples of a busy loop.
        """
        seconds = now - self._began
        if seconds < WINDOW_SECONDS:
            return None
        interval, computes = self._interval, max(1.0 - (waited - self._waited) / seconds, 0.0)
        self._began, self._waited, self._interval = now, waited, BlockedInterval(now, waited)
        interval.seconds = interval.count_of_worst() * look_seconds * computes
        return interval.report() if interval.seconds >= LEAST_SHARE * seconds else None
