"""The inference workers that are alive, and how much each has in hand: where the next completion goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from areal_actors.errors import EngineError

T = TypeVar("T")


class WorkerLost(EngineError):
    """Raised into a completion whose worker died."""


class WorkerPool:
    """A worker is alive from the first weights it has loaded until it is reported gone."""

    def __init__(self) -> None:
        self.versions: dict[str, int] = {}
        self.in_hand: dict[str, int] = {}
        self._gone: dict[str, asyncio.Event] = {}
        self._changed = asyncio.Event()

    def loaded(self, worker: str, weight_version: int) -> None:
        """A worker generates with this version."""
        self.versions[worker] = weight_version
        self.in_hand.setdefault(worker, 0)
        self._gone.setdefault(worker, asyncio.Event())
        self._changed.set()

    def lost(self, worker: str) -> None:
        """A worker is gone; what it had in hand is told at once."""
        if worker in self.versions:
            del self.versions[worker], self.in_hand[worker]
            self._gone.pop(worker).set()

    async def choose(self, seconds: float) -> str:
        """The worker with the least in hand; waits for one to come up.

        Raises:
            EngineError: none came within `seconds`.
        """
        try:
            async with asyncio.timeout(seconds):
                while not self.versions:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise EngineError(f"no inference worker has come up within {seconds:g} s") from None
        return min(self.versions, key=lambda worker: (self.in_hand[worker], worker))

    @asynccontextmanager
    async def held(self, worker: str) -> AsyncIterator[asyncio.Event]:
        """Count a completion in hand; the event tells when the worker is gone."""
        gone = self._gone[worker]
        self.in_hand[worker] += 1
        try:
            yield gone
        finally:
            if worker in self.in_hand and self._gone.get(worker) is gone:
                self.in_hand[worker] -= 1


async def until_gone(parts: AsyncGenerator[T, None], gone: asyncio.Event, worker: str) -> AsyncGenerator[T, None]:
    """The parts, until the worker that makes them is gone; `parts` is closed in any case.

    Raises:
        WorkerLost: it went before the last part.
    """
    departure = asyncio.ensure_future(gone.wait())
    try:
        while True:
            part = asyncio.ensure_future(anext(parts))
            try:
                await asyncio.wait({part, departure}, return_when=asyncio.FIRST_COMPLETED)
                if not part.done():
                    raise WorkerLost(f"{worker} died while it generated")
            finally:
                if not part.done():
                    part.cancel()
                    await asyncio.wait({part})
            try:
                yield part.result()
            except StopAsyncIteration:
                return
    finally:
        departure.cancel()
        await parts.aclose()
