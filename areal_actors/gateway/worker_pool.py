"""Live inference workers and their in-flight calls: each completion goes to the least busy one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from types import TracebackType
from typing import Any, TypeVar

from areal_actors.core.errors import EngineError

T = TypeVar("T")


class WorkerLost(EngineError):
    """Raised into a completion whose worker died."""


class WorkerExit:
    """Flag that a worker is gone; setting it interrupts the waits for its tokens."""

    def __init__(self) -> None:
        self.over = False
        self._interruptions: dict[Interruption, None] = {}
        """In order of creation, which is the order of interruption: the same seed gives the same run."""

    def set(self) -> None:
        """Mark the worker as gone and interrupt all waits."""
        self.over = True
        for interruption in list(self._interruptions):
            interruption.interrupt()

    def interrupting(self, worker: str) -> Interruption:
        """A context whose waits raise `WorkerLost` once the worker is gone."""
        return Interruption(self._interruptions, worker, over=self.over)


class Interruption:
    """Cancels its task's wait in this context and raises `WorkerLost` instead, like `asyncio.timeout`.

    It wraps every wait for tokens, so it creates no task.
    """

    __slots__ = ("_all", "_cancelling", "_interrupted", "_over", "_task", "_worker")

    def __init__(self, interruptions: dict[Interruption, None], worker: str, *, over: bool) -> None:
        self._all = interruptions
        self._worker = worker
        self._over = over
        self._interrupted = False
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0

    def __enter__(self) -> None:
        if self._over:
            raise self._lost()
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancelling = self._task.cancelling()
        self._all[self] = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._task is not None
        self._all.pop(self, None)
        if self._interrupted and self._task.uncancel() <= self._cancelling and kind in (None, asyncio.CancelledError):
            raise self._lost() from None

    def interrupt(self) -> None:
        """Interrupt the wait: the worker is gone."""
        assert self._task is not None
        self._interrupted = True
        self._task.cancel()

    def _lost(self) -> WorkerLost:
        return WorkerLost(f"{self._worker} died while it generated")


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
        if not self.versions:
            await self._wait_for_one(seconds)
        return min(self.versions, key=lambda worker: (self.in_flight[worker], worker))

    async def _wait_for_one(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not self.versions:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise EngineError(f"no inference worker has come up within {seconds:g} s") from None

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

    def status(self, refused: Mapping[str, int]) -> dict[str, float | str]:
        """Requests in flight and completions refused, by worker."""
        in_flight = {f"in flight of {worker}": count for worker, count in self.in_flight.items()}
        return {**in_flight, **{f"refused of {worker}": count for worker, count in refused.items()}}


async def until_gone(parts: AsyncGenerator[T, None], gone: WorkerExit, worker: str) -> AsyncGenerator[T, None]:
    """Yield the parts until their worker is gone; always closes `parts`.

    Raises:
        WorkerLost: the worker was gone before the last part.
    """
    async with aclosing(parts):
        while True:
            with gone.interrupting(worker):
                try:
                    part = await anext(parts)
                except StopAsyncIteration:
                    return
            yield part
