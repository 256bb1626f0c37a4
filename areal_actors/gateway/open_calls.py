"""Tracks what in-flight model calls wait for, so that an agent's timeout is attributed to the right cause."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from areal_actors.gateway.sessions.registry import Recent
from areal_actors.messages import OpenCall

REMEMBERED = 4096
"""Number of sessions whose last abandoned call is kept."""


class InFlightCall:
    """One model call in the gateway, and what it waits for."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.worker = ""
        """Worker that generates the tokens; empty before one is chosen."""
        self.no_worker = False
        """True if no inference worker is alive."""
        self.tokens = 0
        self.last_token = began

    def assign(self, worker: str) -> None:
        """Record the inference worker that generates."""
        self.worker, self.no_worker = worker, False

    def wait_for_worker(self) -> None:
        """Record that no inference worker is available."""
        self.worker, self.no_worker = "", True

    def add_tokens(self, tokens: int, now: float) -> None:
        """Record a part of the answer."""
        self.tokens += tokens
        self.last_token = now

    def describe(self, now: float, in_flight: Mapping[str, int], *, left: bool = False) -> OpenCall:
        """The call's current state."""
        at: Literal["engine", "gateway"] = "engine" if self.worker or self.no_worker else "gateway"
        busy = "" if left else f"; it has {in_flight.get(self.worker, 0)} calls in flight"
        return OpenCall(seconds=now - self.began, waits_for=self._waits_for(now, busy), at=at, left=left)

    def _waits_for(self, now: float, busy: str) -> str:
        if self.no_worker:
            return "an inference worker: none serves generation (it is gone, or has loaded no weights yet)"
        if not self.worker:
            return "the gateway, which has not asked an inference worker yet"
        sampled = f"{self.tokens} tokens, the last {now - self.last_token:.0f} s ago" if self.tokens else "no token yet"
        return f"{self.worker} ({sampled}{busy})"


class InFlightCalls:
    """In-flight calls by session, and the last abandoned call of each session."""

    def __init__(self) -> None:
        self._in_flight: dict[str, dict[InFlightCall, None]] = {}
        self._left: Recent[str, tuple[InFlightCall, float]] = Recent(REMEMBERED)
        self._just_left: dict[str, InFlightCall] = {}
        """Calls abandoned since the last handled message: their cancellation has no clock, the next message has."""

    @contextmanager
    def track(self, session: str, now: float) -> Iterator[InFlightCall]:
        """Track a call while the context lasts; a cancelled one is kept as abandoned."""
        call = InFlightCall(now)
        self._in_flight.setdefault(session, {})[call] = None
        try:
            yield call
        except (asyncio.CancelledError, GeneratorExit):
            self._just_left[session] = call
            raise
        finally:
            calls = self._in_flight[session]
            del calls[call]
            if not calls:
                del self._in_flight[session]

    def timestamp_left(self, now: float) -> None:
        """Set the time of the calls abandoned since the last handled message."""
        self._left.update({session: (call, now) for session, call in self._just_left.items()})
        self._just_left.clear()

    def describe(self, session: str, now: float, busy: Mapping[str, int]) -> tuple[OpenCall, ...]:
        """Open calls of a session; `busy`: number of in-flight calls by inference worker."""
        self.timestamp_left(now)
        found = [call.describe(now, busy) for call in self._in_flight.get(session, ())]
        if session in self._left:
            call, left = self._left[session]
            found.append(call.describe(left, busy, left=True))
        return tuple(found)
