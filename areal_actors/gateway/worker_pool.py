"""Live inference workers and their in-flight calls: each completion goes to the least busy one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

from areal_actors.core.errors import EngineError

T = TypeVar("T")


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
