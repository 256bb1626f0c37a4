"""Pauses of a gateway's own process: SIGSTOP, a debugger, a suspended machine. Its clients could not use their sessions meanwhile."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

LATE_SECONDS: Final = 3.0
"""A look that is later than this after the last one follows a pause; there is one a second."""
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while the machine is suspended, where the kernel has such a clock."""


def seconds_since_boot() -> float:
    """Returns a time in seconds that no setting of the clock changes."""
    return time.clock_gettime(_CLOCK)


class OwnPauses:
    """Measures the pauses of this process from its own looks at a clock."""

    def __init__(self, clock: Callable[[], float] = seconds_since_boot) -> None:
        self.clock = clock
        self._looked = clock()
        self._ended = -math.inf

    def look(self) -> float:
        """Returns the seconds of the pause that has just ended; 0 if there was none. To be called once a second."""
        before, self._looked = self._looked, self.clock()
        if (seconds := self._looked - before) <= LATE_SECONDS:
            return 0.0
        self._ended = self._looked
        return seconds

    def has_ended_within(self, seconds: float) -> bool:
        """Returns True if a pause ended less than this time ago."""
        return self.clock() - self._ended < seconds
