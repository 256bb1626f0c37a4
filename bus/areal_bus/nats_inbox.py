"""Inboxes for replies of the NATS server or of other processes."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Self

from nats.aio.msg import Msg

from areal_bus.errors import BusError, ServerUnavailable


class Reconnected(ServerUnavailable):
    """Raised after a reconnection to a caller whose request may be lost with the old connection."""


class Disconnected(ServerUnavailable):
    """Raised to a caller as soon as the connection breaks: replies in flight are lost."""


class Inbox:
    """Receives the replies to one request, within its context.

    It is on the path of every streamed token, so a wait costs one future and no task, and all waits have one timer.
    """

    __slots__ = (
        "_deadline",
        "_inboxes",
        "_loop",
        "_received",
        "_timer",
        "_token",
        "_waiter",
        "address",
        "notify_disconnect",
        "notify_reconnect",
        "request_subject",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        inboxes: dict[str, Inbox],
        prefix: str,
        token: str,
        *,
        notify_reconnect: bool = False,
        notify_disconnect: bool = False,
    ) -> None:
        self.address = f"{prefix}.{token}"
        self.request_subject = ""
        """Subject of the request, for which the server may deny permission."""
        self.notify_reconnect = notify_reconnect
        """True to receive `Reconnected` after a reconnection, since the request may be lost with the old connection."""
        self.notify_disconnect = notify_disconnect
        """True to receive `Disconnected` when the connection breaks, before any message of a later connection."""
        self._loop = loop
        self._inboxes = inboxes
        self._token = token
        self._received: deque[Msg | BusError] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Timer of the inbox; one that fires before the deadline of the present wait is set again."""
        self._deadline = 0.0

    def __enter__(self) -> Self:
        self._inboxes[self._token] = self
        return self

    def __exit__(self, *_: object) -> None:
        del self._inboxes[self._token]
        if self._timer is not None:
            self._timer.cancel()

    def put(self, item: Msg | BusError) -> None:
        """Add a message, or an error for `next` to raise."""
        self._received.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self, timeout: float) -> Msg:
        """Wait for the next message.

        Raises:
            TimeoutError: none came in time.
            ServerUnavailable: the connection is lost permanently.
            PermissionDenied: this user may not publish to the request's subject.
        """
        if not self._received:
            self._waiter = self._loop.create_future()
            self._deadline = self._loop.time() + timeout
            if self._timer is None or self._timer.when() > self._deadline:
                self._set_timer()
            await self._waiter
        item = self._received.popleft()
        if isinstance(item, BusError):
            raise item
        return item

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._deadline, self._time_out)

    def _time_out(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if self._loop.time() < self._deadline:
            self._set_timer()
        else:
            self._waiter.set_exception(TimeoutError())
