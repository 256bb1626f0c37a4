"""Batched taking of work items, renewal of their leases, and batched publication."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import structlog

from areal_bus.base import Delivery
from areal_bus.errors import BusError

TAKEN_TOGETHER = 8
"""Maximum number of work items taken in one round trip: more would leave too few to other workers."""
SENT_TOGETHER = 32
"""Maximum number of work items that a handler sends before the first is confirmed; then other actors of the process
have their turn."""
RENEWALS_PER_LEASE = 3
"""Renewals per lease, so that a late or lost one does not end the lease."""
LEASE_SHARE, MAX_LEASES = 0.25, 6.0
"""A lease lasts for this share of the time for which its item has been in progress, and at most for this multiple of
the queue's own: the longer an item takes, the less it matters when another worker begins with it again."""

logger = structlog.get_logger(__name__)


@dataclass
class _Renewal:
    """Times of the renewals of a lease, by the event loop's clock."""

    taken: float
    due: float
    """Time of the next renewal."""


class WorkTasks:
    """Tasks of an actor that take work items, that handle them, and that renews the leases of all of them."""

    def __init__(self) -> None:
        self.taking: list[asyncio.Task[None]] = []
        self._handling: set[asyncio.Task[None]] = set()
        self._leased: dict[Delivery, _Renewal] = {}
        self._renewing: asyncio.Task[None] | None = None

    def add(self, handling: asyncio.Task[None]) -> None:
        """Note the task of an item in progress."""
        self._handling.add(handling)
        handling.add_done_callback(self._handling.discard)

    @contextmanager
    def keep_lease(self, delivery: Delivery, lease_seconds: float) -> Iterator[None]:
        """Renew the lease of an item while the context lasts; those of all new items have the same duration."""
        now = asyncio.get_running_loop().time()
        self._leased[delivery] = _Renewal(now, now)
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew(lease_seconds))
        try:
            yield
        finally:
            self._leased.pop(delivery, None)
            if not self._leased and self._renewing is not None:
                self._renewing.cancel()
                self._renewing = None

    async def _renew(self, lease_seconds: float) -> None:
        """Renew leases periodically, together, so that they share writes.

        A failed renewal is only logged, since the server may be restarting.
        """
        loop, pause = asyncio.get_running_loop(), lease_seconds / RENEWALS_PER_LEASE
        while True:
            await asyncio.sleep(pause)
            for delivery, lease in tuple(self._leased.items()):
                if (now := loop.time()) < lease.due:
                    continue
                seconds = min(max(LEASE_SHARE * (now - lease.taken), lease_seconds), MAX_LEASES * lease_seconds)
                try:
                    await delivery.extend(seconds)
                    lease.due = now + seconds / RENEWALS_PER_LEASE - pause / 2
                except BusError as error:
                    logger.warning("a lease was not renewed", work=delivery.envelope.id, error=str(error))

    async def finish(self) -> None:
        """Take no more items, and wait for those in progress."""
        for taking in self.taking:
            taking.cancel()
        if self._handling:
            await asyncio.wait(set(self._handling))


class SentWork:
    """Work items of one handling that are sent and not yet confirmed: they share writes, and none waits for another."""

    def __init__(self) -> None:
        self._sending: list[asyncio.Task[int]] = []

    async def add(self, publishing: Coroutine[Any, Any, int]) -> None:
        """Send an item, in the order of the calls; waits for the earlier ones when there are `SENT_TOGETHER`."""
        if len(self._sending) == SENT_TOGETHER:
            await self.confirm()
        self._sending.append(asyncio.create_task(publishing))

    async def confirm(self) -> None:
        """Wait until all items are durable; the first error is raised."""
        if self._sending:
            await asyncio.gather(*self._sending)
            self._sending.clear()

    def cancel(self) -> None:
        """Wait no longer for items that are not confirmed."""
        for task in self._sending:
            task.cancel()


async def take_slots(slots: asyncio.Semaphore) -> int:
    """Wait for a slot, then acquire further free ones; returns the number acquired."""
    await slots.acquire()
    taken = 1
    while taken < TAKEN_TOGETHER and not slots.locked():
        await slots.acquire()
        taken += 1
    return taken
