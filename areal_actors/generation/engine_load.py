"""The load of an engine in three levels, reported when it has changed and stayed, and its throughput."""

from __future__ import annotations

from areal_actors.generation.engine import EngineCounters
from areal_actors.messages import EngineLoad, LoadLevel, Throughput

FULL_USAGE, BUSY_USAGE = 0.95, 0.85
"""Used shares of the KV cache at which an engine is full and busy: above, servers begin to preempt completions."""
HELD_SECONDS = 2.0
"""A level is reported when it has lasted for this time: groups arrive at once, and wait for a moment everywhere."""


def load_level(counters: EngineCounters) -> LoadLevel:
    """Returns the level of an engine's current load."""
    if counters.waiting or counters.kv_cache_usage >= FULL_USAGE:
        return "full"
    return "busy" if counters.kv_cache_usage >= BUSY_USAGE else "free"


class LoadReporter:
    """Finds the changes of an engine's level."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._reported: LoadLevel | None = None
        self._level: LoadLevel | None = None
        self._since = 0.0

    def take_change(self, counters: EngineCounters, now: float) -> EngineLoad | None:
        """Returns the new level once it has lasted; None if there is nothing to report."""
        level = load_level(counters)
        if level != self._level:
            self._level, self._since = level, now
        if level == self._reported or now - self._since < HELD_SECONDS:
            return None
        self._reported = level
        return EngineLoad(
            worker=self._worker,
            level=level,
            running=counters.running,
            waiting=counters.waiting,
            kv_cache_usage=counters.kv_cache_usage,
        )


class ThroughputReporter:
    """Measures an engine's throughput from its counters at each tick."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._unfinished_seconds = 0.0
        """Busy time of the engine since it last finished a token."""

    def take(self, counters: EngineCounters, since: float, now: float) -> Throughput:
        """Returns what the engine did between two ticks; a step that is not yet finished counts as busy time."""
        seconds = min(counters.busy_seconds, now - since)
        earlier, self._unfinished_seconds = (
            self._unfinished_seconds,
            0.0 if counters.tokens else self._unfinished_seconds + seconds,
        )
        return Throughput(
            actor=self._worker,
            side="generation",
            tokens=counters.tokens,
            started=since,
            seconds=seconds,
            token_seconds=earlier + seconds if counters.tokens and earlier else 0.0,
            concurrent=counters.running,
            prefilled_tokens=counters.prefilled_tokens,
            cached_tokens=counters.cached_tokens,
        )
