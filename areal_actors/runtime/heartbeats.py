"""Which heartbeats of an actor are sent: one with news at its next time, one without after a longer interval."""

from __future__ import annotations

import time
from collections.abc import Mapping

from areal_actors.messages import Wait

BUSY_SHARE = 0.05
"""CPU time of a process as a share of the time from which on it is not quiet: its load is measured by heartbeats."""

Activity = tuple[Mapping[str, int], tuple[Wait, ...], Mapping[str, float | str]]
"""Messages in progress, waits, and figures of an actor."""


class HeartbeatPace:
    """Finds the heartbeats that tell nothing new, of which one each `quiet_seconds` is enough.

    They are sent at multiples of that time, so that those of all processes wake the server together.
    """

    def __init__(self, seconds: float, quiet_seconds: float) -> None:
        """Begin; `seconds` is the interval between two looks."""
        self._seconds = seconds
        self._every = max(round(quiet_seconds / seconds), 1)
        self._sent: Activity | None = None
        self._skipped = 0
        self._used = 0.0
        """CPU time of the process when a heartbeat was sent last."""

    def is_due(self, activity: Activity, now: float) -> bool:
        """Returns True if a heartbeat with this activity is to be sent now, and then counts it as sent.

        Args:
            activity: what the heartbeat would have.
            now: seconds since the epoch.
        """
        elapsed = (self._skipped + 1) * self._seconds
        if (
            activity == self._sent
            and self._skipped + 1 < self._every
            and round(now / self._seconds) % self._every
            and time.process_time() - self._used < BUSY_SHARE * elapsed
        ):
            self._skipped += 1
            return False
        self._sent, self._skipped, self._used = activity, 0, time.process_time()
        return True
