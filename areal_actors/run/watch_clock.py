"""The clocks of whoever watches the processes of a run: time counts only while the watcher itself could have seen what there was.

A watcher that was stopped (Ctrl-Z, SIGSTOP, a suspended machine), that is far behind in its own messages, or whose connection to
the bus is gone sees no heartbeat of anybody. Wall-clock time or plain monotonic time would make every process late at once.
"""

from __future__ import annotations

MOST_PER_TICK = 1.0
"""Seconds that can pass between two ticks; what is more is a pause of the watcher's own process."""
LONG_GAP_SECONDS = 2.0
"""A gap without answers that is longer may have cost other processes their connections, too."""


class WatchClock:
    """Counts seconds from a monotonic clock, without the watcher's own pauses.

    `running` counts while the watcher's process runs. `watching` counts only while, in addition, what it publishes to itself over the
    bus comes back; heartbeats that were sent before have then been received, too.
    """

    def __init__(self, monotonic: float) -> None:
        self.running = 0.0
        self.watching = 0.0
        self.paused = 0.0
        """Seconds for which the watcher's own process was paused at its last tick."""
        self._last = monotonic
        self._answered_at = 0.0
        self._answered = True

    def answered(self) -> None:
        """A probe has come back over the bus."""
        self._answered = True

    def tick(self, monotonic: float) -> bool:
        """Advance to this reading of the monotonic clock; returns True when a long gap without answers has just ended."""
        elapsed = max(monotonic - self._last, 0.0)
        self._last = monotonic
        self.paused = elapsed if elapsed > MOST_PER_TICK else 0.0
        self.running += min(elapsed, MOST_PER_TICK)
        if not self._answered:
            return self.paused > LONG_GAP_SECONDS
        self._answered = False
        self.watching += min(elapsed, MOST_PER_TICK)
        gap, self._answered_at = self.running - self._answered_at, self.running
        return max(gap, self.paused) > LONG_GAP_SECONDS

    def silent_seconds(self) -> float:
        """Time for which no probe has come back, without the watcher's own pauses."""
        return self.running - self._answered_at
