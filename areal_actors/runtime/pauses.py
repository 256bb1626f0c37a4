"""Pauses of an actor's own process: SIGSTOP, a debugger, a suspended machine.

Nothing could reach the actor meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

LATE_SECONDS: Final = 3.0
"""A look that comes this much later than expected follows a pause."""
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

    def look(self, interval: float) -> float:
        """Returns the seconds since the last look if they are a pause, else 0.

        To be called every `interval` seconds.
        """
        before, self._looked = self._looked, self.clock()
        seconds = self._looked - before
        return seconds if seconds > interval + LATE_SECONDS else 0.0
