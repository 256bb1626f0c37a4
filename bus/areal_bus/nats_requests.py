"""Requests over NATS, and the parts of their replies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

from areal_bus.base import Stamp
from areal_bus.claims import Blobs, check_out
from areal_bus.errors import AnswerLost, BusError, NoReply, NoResponder
from areal_bus.message import Message, Reply, Request
from areal_bus.nats_client import status
from areal_bus.nats_connection import Connection
from areal_bus.nats_inbox import Disconnected, Inbox
from areal_bus.nats_subscriptions import CANCELLED
from areal_bus.payload import unpack
from areal_bus.subjects import check_token

R = TypeVar("R", bound=Reply)

MORE: Final = "Bus-More"
"""Header of a reply part that is not the last."""
PART: Final = "Bus-Part"
"""Header of a part of a streamed reply: its number, from 0."""
_RECONNECT_GRACE_SECONDS: Final = 6.0
"""Time for other processes to reconnect after a server restart; until then a missing responder is not an error."""
_ROUTE_GRACE_SECONDS: Final = 2.0
"""Time for the servers of a cluster to learn of a subscription at another one: a flush ends at the client's own server,
so a request through another server can precede the news of its responder."""
_RETRY_SECONDS: Final = 0.1
_KEPT_SUBJECTS: Final = 1024


class Requester:
    """Sends requests of one connection, and receives the replies."""

    def __init__(
        self, connection: Connection, prefix: str, blobs: Blobs | None, pack: Callable[[Message, Stamp], bytes]
    ) -> None:
        """`prefix` is that of the run's subjects; `pack` encodes a message."""
        self._connection = connection
        self._prefix, self._blobs, self._pack = prefix, blobs, pack
        self._subjects: dict[tuple[str, str], str] = {}
        """Subjects of requests to instances, by the request's own and the instance."""

    def addressed_subject(self, subject: str, address: str) -> str:
        """Returns the subject of requests to one instance."""
        if (addressed := self._subjects.get((subject, address))) is None:
            addressed = f"{self._prefix}_.{check_token('address', address)}.{subject}"
            if len(self._subjects) < _KEPT_SUBJECTS:
                self._subjects[subject, address] = addressed
        return addressed

    def _open_inbox(self) -> Inbox:
        """Returns an inbox for the reply to one request."""
        return self._connection.inbox(notify_disconnect=True, of_server=False)

    async def _send(self, message: Request[Any], stamp: Stamp, to: str, inbox: Inbox) -> None:
        """Send a request whose reply goes to an inbox."""
        subject = self.addressed_subject(message.subject, to) if to else self._prefix + message.subject
        await self._connection.publish(subject, self._pack(message, stamp), reply=inbox.address)

    async def request(self, message: Request[R], stamp: Stamp, *, timeout: float, to: str = "") -> R:
        """Send a request and wait for the one reply; sent again if the reply may be lost with the connection."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        deadline = started + timeout
        while True:
            try:
                with self._open_inbox() as inbox:
                    await self._send(message, stamp, to, inbox)
                    return (await self._next_part(message, inbox, max(deadline - loop.time(), 0.0), 0, timeout))[0]
            except (AnswerLost, NoResponder) as error:
                if loop.time() >= deadline or (isinstance(error, NoResponder) and not self._may_be_early(started)):
                    raise
            await asyncio.sleep(_RETRY_SECONDS)

    async def parts(
        self, message: Request[R], stamp: Stamp, *, timeout: float, to: str = ""
    ) -> AsyncGenerator[R, None]:
        """Send a request and yield the parts of the reply; closing it before the last notifies the instance."""
        started = asyncio.get_running_loop().time()
        with self._open_inbox() as inbox:
            await self._send(message, stamp, to, inbox)
            last, received = False, 0
            try:
                while not last:
                    try:
                        part, last = await self._next_part(message, inbox, timeout, received, timeout)
                    except NoResponder:
                        if received or not self._may_be_early(started):
                            raise
                        await asyncio.sleep(_RETRY_SECONDS)
                        await self._send(message, stamp, to, inbox)
                        continue
                    received += 1
                    yield part
            finally:
                if not last and to:
                    with suppress(BusError):
                        subject = self.addressed_subject(message.subject, to)
                        await self._connection.publish(subject, b"", headers={CANCELLED: inbox.address})

    def _may_be_early(self, started: float) -> bool:
        """True if a responder may exist that has not reconnected yet, or that this server has no news of yet."""
        now = asyncio.get_running_loop().time()
        if now - self._connection.reconnected_at < _RECONNECT_GRACE_SECONDS:
            return True
        return self._connection.in_cluster and now - started < _ROUTE_GRACE_SECONDS

    async def _next_part(
        self, message: Request[R], inbox: Inbox, wait: float, number: int, timeout: float
    ) -> tuple[R, bool]:
        """Returns part `number` of the reply and True if it is the last; `wait` remains of the caller's `timeout`."""
        try:
            answer = await inbox.next(wait)
        except TimeoutError:
            raise NoReply(f"{message.subject}: no reply within {timeout:g} s") from None
        except Disconnected as error:
            raise AnswerLost(
                f"{message.subject}: {error} before the reply arrived, which may be lost; send the request again"
            ) from None
        if status(answer) == "503":
            raise NoResponder(f"no process serves {message.subject} now; is the actor that answers it running?")
        envelope = check_out(unpack(answer.data, where=f"reply to {message.subject}"), self._blobs, keep=False)
        headers = answer.headers or {}
        last = MORE not in headers
        if (part_number := int(headers.get(PART, 0))) != number:
            raise AnswerLost(
                f"{message.subject}: part {number} of the reply is lost, part {part_number} arrived instead; send the"
                " request again"
            )
        return cast(R, envelope.open(type(message).reply)), last
