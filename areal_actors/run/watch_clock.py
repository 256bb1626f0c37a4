"""Clocks of the watcher of a run's processes: time counts only while the watcher itself could receive heartbeats.

A watcher that was stopped (Ctrl-Z, SIGSTOP, a suspended machine), has a backlog of messages, or has lost its connection to
the bus receives no heartbeats. With wall-clock or plain monotonic time, every process would be late at once.
"""

from __future__ import annotations

MAX_TICK_SECONDS = 1.0
"""Maximum seconds between two ticks; more is a pause of the watcher's own process."""
LONG_GAP_SECONDS = 2.0
"""After a longer gap without answers, other processes may have lost their connections, too."""


class WatchClock:
    """Counts seconds from a monotonic clock, without the watcher's own pauses.

    `running` counts while the watcher's process runs. `watching` counts only while, in addition, its probes return over
    the bus; heartbeats that were sent before have then been received, too.
    """

    def __init__(self, monotonic: float) -> None:
        self.running = 0.0
        self.watching = 0.0
        self.paused = 0.0
        """Pause of the watcher's own process at its last tick, in seconds."""
        self._last = monotonic
        self._answered_at = 0.0
        self._answered = True

    def answered(self) -> None:
        """Note that a probe has returned over the bus."""
        self._answered = True

    def tick(self, monotonic: float) -> bool:
        """Advance to this reading of the monotonic clock; returns True when a long gap without answers has just ended."""
        elapsed = max(monotonic - self._last, 0.0)
        self._last = monotonic
        self.paused = elapsed if elapsed > MAX_TICK_SECONDS else 0.0
        self.running += min(elapsed, MAX_TICK_SECONDS)
        if not self._answered:
            return self.paused > LONG_GAP_SECONDS
        self._answered = False
        self.watching += min(elapsed, MAX_TICK_SECONDS)
        gap, self._answered_at = self.running - self._answered_at, self.running
        return max(gap, self.paused) > LONG_GAP_SECONDS

    def silent_seconds(self) -> float:
        """Returns the seconds since the last returned probe, without the watcher's own pauses."""
        return self.running - self._answered_at
