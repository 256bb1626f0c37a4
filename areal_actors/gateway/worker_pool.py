"""Live inference workers and model calls in flight: a session stays with its worker unless another is much less busy.

What a call waits for is tracked, so that an agent's timeout is attributed to the right cause.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Literal, Self, TypeVar

from areal_actors.core.errors import EngineError
from areal_actors.gateway.held_prefixes import HeldPrefixes
from areal_actors.gateway.sessions.registry import Recent
from areal_actors.messages import OpenCall
from areal_actors.runtime.actor import Context

T = TypeVar("T")

REMEMBERED = 4096
"""Number of sessions whose last abandoned call is kept."""
REMEMBERED_WORKERS = 65_536
"""Number of sessions whose last worker is kept; one that is forgotten goes to the least busy worker."""
HEAP_FACTOR = 8
"""Entries of the heap of workers for each of them, above which it is built again."""
MARGIN_CALLS = 4
MARGIN_SHARE = 1 / 8
"""A session stays with its worker while that has at most `MARGIN_CALLS` more calls in flight than the least busy
worker, plus this share of the calls of the least busy one: 4 more than none, 20 more than 128. By chance alone, two
workers with 128 calls each differ by 16. In an engine of 128 slots these calls slow each decode step by a few percent,
while another worker would compute the whole history of the session again. With few calls in flight, as on a CPU, each
of them counts, and the margin is small."""


class WorkerLost(EngineError):
    """Raised into a completion whose worker died."""


class WorkerExit:
    """Flag that a worker is gone; setting it ends the waits for its tokens."""

    def __init__(self) -> None:
        self.over = False
        self.waits: dict[WaitForParts, None] = {}
        """In order of creation, which is the order in which they end: the same seed gives the same run."""

    def set(self) -> None:
        """Mark the worker as gone and end all waits."""
        self.over = True
        for wait in self.waits:
            wait.end()


class WaitForParts:
    """The waits of one completion for the parts of its answer, which the worker's exit ends, as a context.

    It is on the path of every streamed token, so it costs less than a timeout.
    """

    __slots__ = ("_ended", "_gone", "_is_waiting", "_task", "_worker")

    def __init__(self, gone: WorkerExit, worker: str) -> None:
        self._gone, self._worker = gone, worker
        self._task: asyncio.Task[Any] | None = None
        """The task of all waits."""
        self._is_waiting = self._ended = False

    def __enter__(self) -> Self:
        self._gone.waits[self] = None
        self._task = asyncio.current_task()
        return self

    def __exit__(self, *_: object) -> None:
        del self._gone.waits[self]

    def end(self) -> None:
        """End the present wait with a `CancelledError` in its task."""
        if self._is_waiting and self._task is not None:
            self._ended = True
            self._task.cancel()

    async def next_of(self, parts: AsyncGenerator[T, None]) -> T | None:
        """Returns the next part, None after the last.

        Raises:
            WorkerLost: the worker is gone.
        """
        if self._gone.over:
            raise self._lost()
        task = self._task
        assert task is not None
        cancelled_before, self._is_waiting = task.cancelling(), True
        try:
            return await anext(parts)
        except StopAsyncIteration:
            return None
        except asyncio.CancelledError:
            if not self._ended or task.uncancel() > cancelled_before:
                raise
            raise self._lost() from None
        finally:
            self._is_waiting = False

    def _lost(self) -> WorkerLost:
        return WorkerLost(f"{self._worker} died while it generated")


class WorkerPool:
    """A worker is alive from the first weights it has loaded until it is reported gone."""

    def __init__(self) -> None:
        self.versions: dict[str, int] = {}
        self.held = HeldPrefixes()
        self.newest_version = -1
        """Newest version that a worker has loaded; -1 before the first."""
        self.in_flight: dict[str, int] = {}
        self._gone: dict[str, WorkerExit] = {}
        self._changed = asyncio.Event()
        self._last_worker: Recent[str, tuple[str, int]] = Recent(REMEMBERED_WORKERS)
        """The worker whose prefix cache holds the history of a session, and its load of weights."""
        self._loads: Counter[str] = Counter()
        """Loads of weights by worker: what its prefix cache held before is gone."""
        self._by_calls: list[tuple[int, str]] = []
        """A heap of workers by calls in flight, if there are several; entries with an earlier number of calls are
        skipped."""

    def record_load(self, worker: str, weight_version: int) -> None:
        """Record that a worker generates with this version; its prefix cache holds no more than its calls in flight."""
        self._loads[worker] += 1
        self.versions[worker] = weight_version
        self.newest_version = max(self.newest_version, weight_version)
        self._count(worker, self.in_flight.get(worker, 0))
        self._gone.setdefault(worker, WorkerExit())
        self._changed.set()

    def remove_lost(self, worker: str) -> None:
        """Remove a worker that is gone, and interrupt its in-flight calls."""
        if worker in self.versions:
            del self.versions[worker], self.in_flight[worker]
            self._gone.pop(worker).set()
            self.held.drop_worker(worker)

    def interrupt_all(self) -> None:
        """Have all in-flight calls continue on any worker."""
        for worker, weight_version in list(self.versions.items()):
            self.remove_lost(worker)
            self.record_load(worker, weight_version)

    def forget(self, session: str) -> None:
        """Have the session's next call go to the least busy worker."""
        self._last_worker.pop(session, None)

    def _count(self, worker: str, calls: int) -> None:
        """Set the number of a worker's calls in flight."""
        self.in_flight[worker] = calls
        if len(self.in_flight) == 1:
            self._by_calls.clear()
            return
        heapq.heappush(self._by_calls, (calls, worker))
        if not len(self.in_flight) <= len(self._by_calls) <= HEAP_FACTOR * len(self.in_flight):
            self._by_calls = [(calls, worker) for worker, calls in self.in_flight.items()]
            heapq.heapify(self._by_calls)

    def _least_busy(self) -> str:
        if len(self.in_flight) == 1:
            return next(iter(self.in_flight))
        while self.in_flight.get(self._by_calls[0][1]) != self._by_calls[0][0]:
            heapq.heappop(self._by_calls)
        return self._by_calls[0][1]

    async def choose(self, seconds: float, session: str = "") -> str:
        """The session's last worker if it is within the margin, else the one with the fewest calls in flight.

        Waits until there is one.

        Raises:
            EngineError: no worker came up within `seconds`.
        """
        while (worker := self.find_free(session)) is None:
            await self._until_up(seconds)
        return worker

    def find_free(self, session: str) -> str | None:
        """The worker of the session's next call; None if there is none yet."""
        if not self.versions:
            return None
        idle = self._least_busy()
        last, loads = self._last_worker.get(session, (idle, self._loads[idle]))
        if last not in self.in_flight or loads != self._loads[last]:
            return idle
        fewest = self.in_flight[idle]
        return last if self.in_flight[last] <= fewest + MARGIN_CALLS + fewest * MARGIN_SHARE else idle

    async def _until_up(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not self.versions:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise EngineError(f"no inference worker has come up within {seconds:g} s") from None

    def count_call(self, worker: str, session: str = "") -> CountedCall:
        """Count a completion of a session as in flight, in a context with the flag that the worker is gone.

        The session's next call goes to the same worker.
        """
        return CountedCall(self, worker, session)

    def begin_call(self, worker: str) -> WorkerExit:
        """Count one more call of a worker; returns the flag that it is gone."""
        gone = self._gone[worker]
        self._count(worker, self.in_flight[worker] + 1)
        return gone

    def end_call(self, worker: str, session: str, gone: WorkerExit) -> None:
        """Count one call less, of a worker that is not gone, and note it as the session's."""
        if worker in self.in_flight and self._gone.get(worker) is gone:
            self._count(worker, self.in_flight[worker] - 1)
            if session:
                self._last_worker[session] = worker, self._loads[worker]


class CountedCall:
    """A completion that is counted as in flight while the context lasts."""

    __slots__ = ("_gone", "_pool", "_session", "_worker")

    def __init__(self, pool: WorkerPool, worker: str, session: str) -> None:
        self._pool, self._worker, self._session = pool, worker, session

    def __enter__(self) -> WorkerExit:
        self._gone = self._pool.begin_call(self._worker)
        return self._gone

    def __exit__(self, *_: object) -> None:
        self._pool.end_call(self._worker, self._session, self._gone)


class QueuedTime:
    """Time in which calls of a session waited for their first token; calls that wait together count once."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._until = 0.0
        """Time up to which it is counted."""

    def add(self, began: float, first_token: float) -> None:
        """Add the wait of a call; calls come in the order of their first tokens."""
        self._seconds += first_token - min(max(began, self._until), first_token)
        self._until = first_token

    def seconds(self, began: float, now: float) -> float:
        """Time up to now, if the oldest call without a token began then."""
        return self._seconds + now - min(max(began, self._until), now)


class InFlightCall:
    """One model call in the gateway, and what it waits for."""

    def __init__(self, began: float, queued: QueuedTime) -> None:
        """`queued` counts the time to the first token."""
        self.began = began
        self._queued = queued
        self.worker = ""
        """Worker that generates the tokens; empty before one is chosen."""
        self.no_worker = False
        """True if no inference worker is alive."""
        self.tokens = 0
        self.queues = True
        """True before the first token."""
        self.last_token = began

    def assign(self, worker: str) -> None:
        """Record the inference worker that generates."""
        self.worker, self.no_worker = worker, False

    def wait_for_worker(self) -> None:
        """Record that no inference worker is available."""
        self.worker, self.no_worker = "", True

    def add_tokens(self, tokens: int, now: float) -> None:
        """Record a part of the answer."""
        if self.queues:
            self.queues = False
            self._queued.add(self.began, now)
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


class NamedCalls(dict[tuple[str, str], asyncio.Event]):
    """Unanswered requests with a request id, by session and id."""

    async def take(self, session: str, name: str, context: Context, seconds: float) -> TakenName:
        """Take a name once no request of that name is unanswered in a session; waits as many seconds each time."""
        while (earlier := self.get((session, name))) is not None:
            with context.waiting("an earlier request for the same call", seconds):
                await earlier.wait()
        self[session, name] = asyncio.Event()
        return TakenName(self, (session, name))


class TakenName:
    """A name that other requests wait for until the end of the context."""

    __slots__ = ("_calls", "_name")

    def __init__(self, calls: NamedCalls, name: tuple[str, str]) -> None:
        self._calls, self._name = calls, name

    def __enter__(self) -> None:
        """Nothing is left to do."""

    def __exit__(self, *_: object) -> None:
        self._calls.pop(self._name).set()


class InFlightCalls:
    """In-flight calls by session, and the last abandoned call of each session."""

    def __init__(self) -> None:
        self._in_flight: dict[str, dict[InFlightCall, None]] = {}
        self._left: Recent[str, tuple[InFlightCall, float]] = Recent(REMEMBERED)
        self._queued: Recent[str, QueuedTime] = Recent(REMEMBERED)
        """Waits of the calls of each session for their first tokens."""
        self._just_left: dict[str, InFlightCall] = {}
        """Calls abandoned since the last handled message: their cancellation has no clock, the next message has."""

    def track(self, session: str, now: float) -> TrackedCall:
        """Track a call while the context lasts; a cancelled one is kept as abandoned."""
        return TrackedCall(self, session, now)

    def begin(self, session: str, now: float) -> InFlightCall:
        """Add a call."""
        if (queued := self._queued.get(session)) is None:
            queued = self._queued[session] = QueuedTime()
        call = InFlightCall(now, queued)
        self._in_flight.setdefault(session, {})[call] = None
        return call

    def end(self, session: str, call: InFlightCall, *, left: bool) -> None:
        """Remove a call; one that its client left is kept as abandoned."""
        if left:
            self._just_left[session] = call
        calls = self._in_flight[session]
        del calls[call]
        if not calls:
            del self._in_flight[session]

    def queued_seconds(self, session: str, now: float) -> float:
        """Time in which calls of a session waited for their first token, up to now."""
        waiting = [call.began for call in self._in_flight.get(session, ()) if call.queues]
        return self._queued.get(session, QueuedTime()).seconds(min(waiting, default=now), now)

    def timestamp_left(self, now: float) -> None:
        """Set the time of the calls abandoned since the last handled message."""
        self._left.update({session: (call, now) for session, call in self._just_left.items()})
        self._just_left.clear()

    def describe(self, session: str, now: float, busy: Mapping[str, int]) -> tuple[OpenCall, ...]:
        """Open calls of a session; `busy`: number of in-flight calls by inference worker."""
        self.timestamp_left(now)
        descriptions = [call.describe(now, busy) for call in self._in_flight.get(session, ())]
        if session in self._left:
            call, left = self._left[session]
            descriptions.append(call.describe(left, busy, left=True))
        return tuple(descriptions)


class TrackedCall:
    """A call that is in flight while the context lasts."""

    __slots__ = ("_call", "_calls", "_now", "_session")

    def __init__(self, calls: InFlightCalls, session: str, now: float) -> None:
        self._calls, self._session, self._now = calls, session, now

    def __enter__(self) -> InFlightCall:
        self._call = self._calls.begin(self._session, self._now)
        return self._call

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        left = kind is not None and issubclass(kind, (asyncio.CancelledError, GeneratorExit))
        self._calls.end(self._session, self._call, left=left)
