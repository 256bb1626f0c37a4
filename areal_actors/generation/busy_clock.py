"""Measures the time in which an engine works, that of a step in progress included."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class BusyClock:
    """Runs while the engine works. It may be read in the middle of a step, from another thread, however long the step takes."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seconds = 0.0
        self._since: float | None = None
        """Start of the time that is not yet in `_seconds`; None while the engine is idle."""

    def start(self) -> None:
        """Note that the engine works from now on; does nothing if it works already."""
        with self._lock:
            if self._since is None:
                self._since = self._clock()

    def stop(self) -> None:
        """Note that the engine is idle from now on; does nothing if it is idle already."""
        with self._lock:
            self._add()
            self._since = None

    def take_seconds(self) -> float:
        """Returns the busy seconds since the last call."""
        with self._lock:
            self._add()
            seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _add(self) -> None:
        if self._since is not None:
            now = self._clock()
            self._seconds += now - self._since
            self._since = now
