"""What the model calls that are in hand wait for, so that an agent that does not return is not blamed for their wait."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from areal_actors.messages import OpenCall

REMEMBERED = 4096
"""Sessions whose last call that the agent left is kept."""


class InFlightCall:
    """One model call on its way through the gateway; whoever carries it on notes what it waits for."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.worker = ""
        """That has been asked for tokens; empty before."""
        self.no_worker = False
        """No inference worker is alive."""
        self.tokens = 0
        self.last_token = began

    def assign(self, worker: str) -> None:
        """An inference worker is chosen."""
        self.worker, self.no_worker = worker, False

    def wait_for_worker(self) -> None:
        """There is none to be chosen."""
        self.worker, self.no_worker = "", True

    def add_tokens(self, tokens: int, now: float) -> None:
        """A part of the answer is there."""
        self.tokens += tokens
        self.last_token = now

    def describe(self, now: float, in_flight: Mapping[str, int], *, left: bool = False) -> OpenCall:
        """How it stands."""
        at: Literal["engine", "gateway"] = "engine" if self.worker or self.no_worker else "gateway"
        busy = "" if left else f"; it has {in_flight.get(self.worker, 0)} calls in hand"
        return OpenCall(seconds=now - self.began, waits_for=self._waits_for(now, busy), at=at, left=left)

    def _waits_for(self, now: float, busy: str) -> str:
        if self.no_worker:
            return "an inference worker: none serves generation (it is gone, or has loaded no weights yet)"
        if not self.worker:
            return "the gateway, which has not asked an inference worker yet"
        sampled = f"{self.tokens} tokens, the last {now - self.last_token:.0f} s ago" if self.tokens else "no token yet"
        return f"{self.worker} ({sampled}{busy})"


class InFlightCalls:
    """The calls in hand, by session, and the last one of each session that its agent has left."""

    def __init__(self) -> None:
        self._in_flight: dict[str, dict[InFlightCall, None]] = {}
        self._left: OrderedDict[str, tuple[InFlightCall, float]] = OrderedDict()
        self._just_left: dict[str, InFlightCall] = {}
        """When they were left is not known to whom it interrupts; the next message that is handled says it."""

    @contextmanager
    def track(self, session: str, now: float) -> Iterator[InFlightCall]:
        """A call, while the context lasts; one that is interrupted is remembered as left."""
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
        """Note the time for the calls that were left since the last look."""
        for session, call in self._just_left.items():
            self._left[session] = (call, now)
            self._left.move_to_end(session)
            if len(self._left) > REMEMBERED:
                self._left.popitem(last=False)
        self._just_left.clear()

    def describe(self, session: str, now: float, busy: Mapping[str, int]) -> tuple[OpenCall, ...]:
        """The calls of a session; `busy` are those that each inference worker has in hand."""
        self.timestamp_left(now)
        found = [call.describe(now, busy) for call in self._in_flight.get(session, ())]
        if session in self._left:
            call, left = self._left[session]
            found.append(call.describe(left, busy, left=True))
        return tuple(found)
