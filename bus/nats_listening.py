"""Listening to what is published now: requests, telemetry, and everything for a monitor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import structlog
from nats.aio.msg import Msg

from bus.delivery import put_or_drop_oldest
from bus.errors import ServerUnavailable
from bus.nats_link import Link

LEFT: Final = "Areal-Left"
"""Header of a message by which an asker leaves before the last part of the answer."""

_logger = structlog.get_logger(__name__)


@asynccontextmanager
async def subscribed(
    link: Link, where: dict[str, str], queue: asyncio.Queue[Msg], on_left: Callable[[str], object] | None = None
) -> AsyncIterator[None]:
    """Put what arrives at these subjects into the queue; each subject may be shared with a group.

    That an asker has left does not stand in line behind other questions: `on_left` is called at once.
    """
    dropped = 0

    async def hear(message: Msg) -> None:
        nonlocal dropped
        if on_left is not None and message.headers and (left := message.headers.get(LEFT)):
            on_left(left)
            return
        dropped += put_or_drop_oldest(queue, message)

    subscriptions = [await link.subscribe(subject, hear, group=group) for subject, group in where.items()]
    try:
        await link.barrier()
        yield
    finally:
        for subscription in subscriptions:
            await link.unsubscribe(subscription)
        if link.is_up:
            # Who asks from now on is told at once that nobody is here.
            with suppress(ServerUnavailable):
                await link.barrier()
        if dropped:
            _logger.warning("a listener was too slow", lost=dropped, subjects=list(where))
