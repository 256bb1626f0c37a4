"""Telemetry of one connection: each message is sent to it, received and decoded once for all its subscribers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from areal_bus.base import Subscription
from areal_bus.delivery import TELEMETRY_BACKLOG, Deliveries, Kinds, Received, by_subject, put_or_drop_oldest
from areal_bus.message import Telemetry
from areal_bus.nats_connection import Connection

Open = Callable[[Msg, Kinds], Received | None]
"""Decodes a message; None for a damaged one."""
_UNREAD: Final = object()

_logger = structlog.get_logger(__name__)


class _Shared:
    """A message that the first of its subscribers decodes."""

    __slots__ = ("_decoded", "_message")

    def __init__(self, message: Msg) -> None:
        self._message = message
        self._decoded: Received | object | None = _UNREAD

    def decode(self, open_message: Open, kinds: Kinds) -> Received | None:
        """Returns the delivery; None for a damaged message."""
        if self._decoded is _UNREAD:
            self._decoded = open_message(self._message, kinds)
        return self._decoded if isinstance(self._decoded, Received) else None


class _Inbox:
    """The queue of a subscriber."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[_Shared] = asyncio.Queue(TELEMETRY_BACKLOG)
        self.dropped = 0

    def put(self, message: _Shared) -> None:
        """Put a message into the queue, in place of the oldest if it is full."""
        self.dropped += put_or_drop_oldest(self.queue, message)


class SharedTelemetry:
    """Subscribes to each kind of telemetry once, and passes it on."""

    def __init__(self, connection: Connection, prefix: str, open_message: Open) -> None:
        self._connection, self._prefix, self._open = connection, prefix, open_message
        self._inboxes: dict[str, set[_Inbox]] = {}
        """Subscribers by subject."""
        self._subscriptions: dict[str, NatsSubscription] = {}
        self._changing = asyncio.Lock()

    @asynccontextmanager
    async def subscribe(self, *kinds: type[Telemetry]) -> AsyncIterator[Subscription]:
        """Subscribe to telemetry from now on."""
        opened, inbox = by_subject(*kinds), _Inbox()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._leave, list(opened), inbox)
            for subject in opened:
                await self._join(subject, inbox)
            await self._connection.barrier()
            yield Deliveries(inbox.queue.get, lambda message: message.decode(self._open, opened))

    async def _join(self, subject: str, inbox: _Inbox) -> None:
        async with self._changing:
            self._inboxes.setdefault(subject, set()).add(inbox)
            if subject not in self._subscriptions:

                def receive(message: Msg) -> None:
                    shared = _Shared(message)
                    for receiver in self._inboxes.get(subject, ()):
                        receiver.put(shared)

                self._subscriptions[subject] = await self._connection.receive(self._prefix + subject, receive)

    async def _leave(self, subjects: list[str], inbox: _Inbox) -> None:
        """End a subscription; the last one of a subject ends that at the server."""
        async with self._changing:
            for subject in subjects:
                inboxes = self._inboxes.get(subject, set())
                inboxes.discard(inbox)
                if not inboxes and (subscription := self._subscriptions.pop(subject, None)) is not None:
                    await self._connection.unsubscribe(subscription)
        if inbox.dropped:
            _logger.warning("a subscriber was too slow and lost messages", lost=inbox.dropped, subjects=subjects)
