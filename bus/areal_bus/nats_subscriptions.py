"""Live subscriptions: requests, telemetry, and all messages for a monitor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import structlog
from nats.aio.msg import Msg

from areal_bus.delivery import put_or_drop_oldest
from areal_bus.errors import ServerUnavailable
from areal_bus.nats_connection import Connection

CANCELLED: Final = "Bus-Left"
"""Header of a message with which a caller cancels a request; the value is the request's reply subject."""

_logger = structlog.get_logger(__name__)


@asynccontextmanager
async def subscribe(
    connection: Connection,
    groups: dict[str, str],
    queue: asyncio.Queue[Msg],
    on_cancelled: Callable[[str], object] | None = None,
) -> AsyncIterator[None]:
    """Put messages on these subjects into the queue; `groups` has the queue group of each subject, or an empty string.

    Cancellations bypass the queue: `on_cancelled` is called at once.
    """
    dropped = 0

    def receive(message: Msg) -> None:
        nonlocal dropped
        if on_cancelled is not None and message.headers and (reply_to := message.headers.get(CANCELLED)):
            on_cancelled(reply_to)
            return
        dropped += put_or_drop_oldest(queue, message)

    subscriptions = [await connection.receive(subject, receive, group=group) for subject, group in groups.items()]
    try:
        await connection.barrier()
        yield
    finally:
        for subscription in subscriptions:
            await connection.unsubscribe(subscription)
        if connection.is_up:
            # From now on callers get `NoResponder` at once.
            with suppress(ServerUnavailable):
                await connection.barrier()
        if dropped:
            _logger.warning("a subscriber was too slow and lost messages", lost=dropped, subjects=list(groups))
