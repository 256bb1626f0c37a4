"""Live inference workers and model calls in flight: each completion goes to the least busy worker.

What a call waits for is tracked, so that an agent's timeout is attributed to the right cause.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Literal, TypeVar

from areal_actors.core.errors import EngineError
from areal_actors.gateway.sessions.registry import Recent
from areal_actors.messages import OpenCall

T = TypeVar("T")

REMEMBERED = 4096
"""Number of sessions whose last abandoned call is kept."""


class WorkerLost(EngineError):
    """Raised into a completion whose worker died."""


class WorkerExit:
    """Flag that a worker is gone; setting it ends the waits for its tokens."""

    def __init__(self) -> None:
        self.over = False
        self.waits: dict[asyncio.Timeout, None] = {}
        """In order of creation, which is the order in which they end: the same seed gives the same run."""

    def set(self) -> None:
        """Mark the worker as gone and end all waits."""
        self.over = True
        for wait in self.waits:
            wait.reschedule(asyncio.get_running_loop().time())


class WorkerPool:
    """A worker is alive from the first weights it has loaded until it is reported gone."""

    def __init__(self) -> None:
        self.versions: dict[str, int] = {}
        self.in_flight: dict[str, int] = {}
        self._gone: dict[str, WorkerExit] = {}
        self._changed = asyncio.Event()

    def loaded(self, worker: str, weight_version: int) -> None:
        """Record that a worker generates with this version."""
        self.versions[worker] = weight_version
        self.in_flight.setdefault(worker, 0)
        self._gone.setdefault(worker, WorkerExit())
        self._changed.set()

    def lost(self, worker: str) -> None:
        """Remove a worker that is gone, and interrupt its in-flight calls."""
        if worker in self.versions:
            del self.versions[worker], self.in_flight[worker]
            self._gone.pop(worker).set()

    async def choose(self, seconds: float) -> str:
        """The worker with the fewest calls in flight; waits until there is one.

        Raises:
            EngineError: no worker came up within `seconds`.
        """
        try:
            async with asyncio.timeout(seconds):
                while not self.versions:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise EngineError(f"no inference worker has come up within {seconds:g} s") from None
        return min(self.versions, key=lambda worker: (self.in_flight[worker], worker))

    @asynccontextmanager
    async def count_call(self, worker: str) -> AsyncIterator[WorkerExit]:
        """Count a completion as in flight; yields the flag that the worker is gone."""
        gone = self._gone[worker]
        self.in_flight[worker] += 1
        try:
            yield gone
        finally:
            if worker in self.in_flight and self._gone.get(worker) is gone:
                self.in_flight[worker] -= 1


async def until_gone(parts: AsyncGenerator[T, None], gone: WorkerExit, worker: str) -> AsyncGenerator[T, None]:
    """Yield the parts until their worker is gone; always closes `parts`.

    Raises:
        WorkerLost: the worker was gone before the last part.
    """
    async with aclosing(parts):
        while not gone.over:
            try:
                async with asyncio.timeout(None) as wait:
                    gone.waits[wait] = None
                    part = await anext(parts)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if not wait.expired():
                    raise
                break
            finally:
                gone.waits.pop(wait, None)
            yield part
    raise WorkerLost(f"{worker} died while it generated")


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
