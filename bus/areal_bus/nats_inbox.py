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

    It is on the path of every streamed token, so a wait costs one future, and neither a task nor a timer.
    """

    __slots__ = (
        "_inboxes",
        "_received",
        "_token",
        "_waiter",
        "address",
        "deadline",
        "notify_disconnect",
        "notify_reconnect",
        "request_subject",
    )

    def __init__(
        self,
        inboxes: Inboxes,
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
        self._inboxes = inboxes
        self._token = token
        self._received: deque[Msg | BusError] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.deadline = 0.0
        """Deadline of the present wait, by the event loop's clock."""

    def __enter__(self) -> Self:
        self._inboxes[self._token] = self
        return self

    def __exit__(self, *_: object) -> None:
        del self._inboxes[self._token]

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
            loop = self._inboxes.loop
            self._waiter = loop.create_future()
            self.deadline = loop.time() + timeout
            self._inboxes.watch(self.deadline)
            await self._waiter
        item = self._received.popleft()
        if isinstance(item, BusError):
            raise item
        return item

    def is_waiting(self) -> bool:
        """True during a wait."""
        return self._waiter is not None and not self._waiter.done()

    def time_out(self) -> None:
        """End the present wait."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(TimeoutError())


class Inboxes(dict[str, Inbox]):
    """The inboxes of a connection by the last tokens of their addresses; one timer ends the waits of all."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.loop = loop
        self._timer: asyncio.TimerHandle | None = None
        """Timer at or before the first deadline of a wait."""

    def watch(self, deadline: float) -> None:
        """Look at the waits at this time."""
        if self._timer is None or self._timer.when() > deadline:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(deadline, self._look)

    def _look(self) -> None:
        self._timer, now = None, self.loop.time()
        waiting = [inbox for inbox in self.values() if inbox.is_waiting()]
        for inbox in waiting:
            if inbox.deadline <= now:
                inbox.time_out()
        if later := [inbox.deadline for inbox in waiting if inbox.deadline > now]:
            self.watch(min(later))
