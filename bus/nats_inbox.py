"""Where the answers of a NATS server, or of others at it, arrive."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Self

from nats.aio.msg import Msg

from bus.errors import BusError, ServerUnavailable


class Renewed(ServerUnavailable):
    """Raised to an asker whose question may have died with the old connection."""


class Broken(ServerUnavailable):
    """Raised to an asker at once when the connection breaks: answers that were on their way are lost."""


class Inbox:
    """Where the answers to one question arrive, while the context lasts.

    It stands on the way of every token, so it is one future and one timer a wait, and no task.
    """

    __slots__ = ("_arrived", "_inboxes", "_loop", "_token", "_waiter", "address", "asked", "until_broken", "until_return")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        inboxes: dict[str, Inbox],
        prefix: str,
        token: str,
        *,
        until_return: bool = False,
        until_broken: bool = False,
    ) -> None:
        self.address = f"{prefix}.{token}"
        self.asked = ""
        """The subject of the question, for which the server may deny permission."""
        self.until_return = until_return
        """Whether the asker wants to hear of a new connection, for the question may have died with the old one."""
        self.until_broken = until_broken
        """Whether the asker wants to hear that the connection broke, before anything that a later connection brings."""
        self._loop = loop
        self._inboxes = inboxes
        self._token = token
        self._arrived: deque[Msg | BusError] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        self._inboxes[self._token] = self
        return self

    def __exit__(self, *_: object) -> None:
        del self._inboxes[self._token]

    def put(self, answer: Msg | BusError) -> None:
        """Something has arrived; an error is raised to who takes it."""
        self._arrived.append(answer)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self, timeout: float) -> Msg:
        """The next answer.

        Raises:
            TimeoutError: none came in time.
            ServerUnavailable: the connection is lost for good.
            PermissionDenied: this user may not ask that.
        """
        if not self._arrived:
            self._waiter = self._loop.create_future()
            timer = self._loop.call_later(timeout, _time_out, self._waiter)
            try:
                await self._waiter
            finally:
                timer.cancel()
        answer = self._arrived.popleft()
        if isinstance(answer, BusError):
            raise answer
        return answer


def _time_out(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())
