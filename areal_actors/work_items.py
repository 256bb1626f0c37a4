"""What a runtime does around an item of work: takes a number of them together, and renews the lease of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from bus.base import Delivery
from bus.errors import BusError

TAKEN_TOGETHER = 8
"""Work items fetched in one round trip, if there are slots for them: more would leave too little to other workers."""
RENEWALS_PER_LEASE = 3
"""So that one that is late or lost does not end the lease."""

logger = structlog.get_logger(__name__)


async def take_slots(slots: asyncio.Semaphore) -> int:
    """Wait for a slot, then take others that are free; returns how many were taken."""
    await slots.acquire()
    taken = 1
    while taken < TAKEN_TOGETHER and not slots.locked():
        await slots.acquire()
        taken += 1
    return taken


@asynccontextmanager
async def renewed(delivery: Delivery, lease_seconds: float) -> AsyncIterator[None]:
    """Hold the lease of an item while the context lasts."""
    renewal = asyncio.create_task(_renew(delivery, lease_seconds))
    try:
        yield
    finally:
        renewal.cancel()


async def _renew(delivery: Delivery, lease_seconds: float) -> None:
    """Go on whatever becomes of one renewal: the server may be away for a while."""
    while True:
        await asyncio.sleep(lease_seconds / RENEWALS_PER_LEASE)
        try:
            await delivery.extend()
        except BusError as error:
            logger.warning("a lease was not renewed", work=delivery.envelope.id, error=str(error))
