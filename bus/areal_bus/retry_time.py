"""The time for which an operation is retried.

Pauses of this process (SIGSTOP, a debugger, a suspended machine) hardly count.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final

_MARGIN_SECONDS: Final = 2.0
"""Time beyond its own limit that an attempt takes on a busy machine."""
_MOST_PAUSES: Final = 4
"""Pauses after which an operation is given up: on a machine that is always this slow every attempt looks like one."""


class RetryTime:
    """Counts the seconds of an operation's attempts.

    One that took much longer than it may was interrupted by a pause.
    """

    def __init__(self, limit: float, attempt: float, clock: Callable[[], float] = monotonic) -> None:
        """`limit` is that of all attempts, `attempt` that of one, in seconds."""
        self._limit, self._longest, self._clock = limit, min(attempt, limit) + _MARGIN_SECONDS, clock
        self._looked = clock()
        self._seconds = 0.0
        self.was_paused = False
        """True if the last attempt was interrupted by a pause: its answer may be on its way."""

    def is_over(self) -> bool:
        """Count the attempt that has just ended; returns True if there is no time for another."""
        before, self._looked = self._looked, self._clock()
        self.was_paused = self._looked - before > self._longest
        self._seconds += self._limit / _MOST_PAUSES if self.was_paused else self._looked - before
        return self._seconds >= self._limit
