"""Connections whose plain requests (`plain_requests.py`) are answered without aiohttp's request and response objects.

A connection begins with plain requests. The first other one, and all that come after it, are aiohttp's: it alone has
what it has read of them. Requests that arrive during a plain one wait for its end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final, Protocol

import structlog
from aiohttp import web

from areal_actors.core.http_connections import HttpConnection, OpenConnection
from areal_actors.core.plain_requests import Incomplete, PlainRequest, head_of_answer, read_plain

HOLD_SECONDS: Final = 0.05
"""Wait for the rest of a plain request, whose head many clients send first; what takes longer is aiohttp's."""
IDLE_SECONDS: Final = 3600.0
"""Time between two requests after which a connection is closed, as by aiohttp."""
MOST_WAITING: Final = 64 << 10
"""Bytes of further requests from which a connection is not read until the present one is answered."""
logger = structlog.get_logger(__name__)


class PlainHandler(Protocol):
    """Answers plain requests."""

    def accepts(self, path: str, headers: Mapping[str, str]) -> bool:
        """True if it answers requests like this one."""
        ...

    async def answer(self, request: PlainRequest, connection: PlainConnection) -> None:
        """Answer a request; a failure has an answer, too, unless the client is gone."""
        ...


class PlainConnection(HttpConnection):
    """A connection to a server that answers plain requests by itself."""

    __slots__ = (
        "_answering",
        "_ended",
        "_handler",
        "_hold",
        "_is_closing",
        "_is_handed_over",
        "_is_paused",
        "_next",
        "_request",
        "_waiting",
    )

    def __init__(self, handler: PlainHandler, server: web.Server, head_seconds: float, place: OpenConnection) -> None:
        super().__init__(server, head_seconds, place)
        self._handler = handler
        self._waiting = b""
        """Bytes that are not read yet."""
        self._answering: asyncio.Task[None] | None = None
        """Answers the plain requests of this connection, from the first one on."""
        self._request: PlainRequest | None = None
        """The one that is being answered."""
        self._next: asyncio.Future[None] | None = None
        """Waits for the next one."""
        self._ended: asyncio.Future[None] | None = None
        """Waits for the end of the present answer."""
        self._hold: asyncio.TimerHandle | None = None
        self._is_handed_over = self._is_paused = self._is_closing = False

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._is_handed_over:
            super().data_received(data)
            return
        self._waiting = self._waiting + data if self._waiting else data
        if self._request is None:
            if self._waiting:
                self._take()
        elif len(self._waiting) > MOST_WAITING and not self._is_paused and self.transport is not None:
            self._is_paused = True
            self.transport.pause_reading()

    def _take(self) -> None:
        """Begin the next request, if it is plain and whole."""
        request = read_plain(self._waiting)
        if request is None or not self._handler.accepts(request.path, request.headers):
            self._hand_over()
        elif isinstance(request, Incomplete):
            if self._hold is None:
                self._hold = asyncio.get_running_loop().call_later(HOLD_SECONDS, self._hand_over)
        elif not self._is_closing:
            self._drop_hold()
            self._waiting = self._waiting[request.size :]
            self.keep_alive(True)
            self.__enter__()
            self._request = request
            if self._answering is None:
                self._answering = asyncio.get_running_loop().create_task(self._answer_all())
            elif self._next is not None and not self._next.done():
                self._next.set_result(None)

    def _hand_over(self) -> None:
        """Have aiohttp read what waits, and all that comes."""
        self._drop_hold()
        self._is_handed_over = True
        data, self._waiting = self._waiting, b""
        super().data_received(data)

    def _drop_hold(self) -> None:
        if self._hold is not None:
            self._hold.cancel()
            self._hold = None

    async def _answer_all(self) -> None:
        """Answer the requests that are taken, one after the other."""
        while True:
            if (request := self._request) is None:
                await self._wait_for_next()
                continue
            is_whole = False
            try:
                await self._handler.answer(request, self)
                is_whole = True
            except ConnectionError:
                pass  # the client is gone
            except Exception:
                logger.exception("an answer could not be sent")
            finally:
                self._request = None
                self.__exit__()
                if self._ended is not None and not self._ended.done():
                    self._ended.set_result(None)
                self._go_on(is_whole=is_whole)

    async def _wait_for_next(self) -> None:
        """Wait for the next plain request; the connection is closed if none comes for a long time."""
        loop = asyncio.get_running_loop()
        self._next = loop.create_future()
        timer = loop.call_later(IDLE_SECONDS, self._close_idle)
        try:
            await self._next
        finally:
            timer.cancel()

    def _close_idle(self) -> None:
        if self.transport is not None and not self._is_handed_over:
            self.transport.close()

    def _go_on(self, *, is_whole: bool) -> None:
        """Take the request that waits, or close a connection that is to end."""
        if self.transport is None:
            return
        if self._is_closing or not is_whole:
            self.transport.close()
            return
        if self._is_paused:
            self._is_paused = False
            self.transport.resume_reading()
        if self._waiting:
            self._take()

    def write(self, data: bytes) -> None:
        """Send bytes of an answer.

        Raises:
            ConnectionResetError: the client is gone.
        """
        if self.transport is None or self.transport.is_closing():
            raise ConnectionResetError("the client has closed the connection")
        self.transport.write(data)

    async def drain(self) -> None:
        """Wait while the client is slower than its answer."""
        if self.writing_paused:
            await self._drain_helper()

    def connection_lost(self, exc: BaseException | None) -> None:
        """See `asyncio.Protocol`; the answer to a client that is gone ends."""
        self._drop_hold()
        if self._answering is not None:
            self._answering.cancel()
        super().connection_lost(exc)

    def close(self) -> None:
        """See aiohttp: the connection ends after its present request."""
        self._is_closing = True
        super().close()

    async def shutdown(self, timeout: float | None = 15.0) -> None:
        """See aiohttp: let the present request end, for some time, and close the connection."""
        if self._request is not None:
            self._ended = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._ended,), timeout=timeout)
        if self._answering is not None:
            self._answering.cancel()
            await asyncio.wait((self._answering,), timeout=timeout)
        await super().shutdown(timeout)


class PlainStream:
    """A streamed answer, in chunks; its head is sent together with its first events."""

    def __init__(self, connection: PlainConnection, headers: dict[str, str]) -> None:
        self.headers = headers
        self._connection = connection
        self._head = b""
        self.prepared = False

    async def begin(self) -> None:
        """Send the head, with the first events."""
        self.prepared = True
        self._head = head_of_answer(200, {**self.headers, "Transfer-Encoding": "chunked"}, time.time())

    async def write(self, data: bytes) -> None:
        """Send events."""
        if data:
            self._send(b"%x\r\n%b\r\n" % (len(data), data))
            await self._connection.drain()

    async def write_eof(self, data: bytes = b"") -> None:
        """Send the last events and end the answer."""
        self._send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n")
        await self._connection.drain()

    def _send(self, chunk: bytes) -> None:
        head, self._head = self._head, b""
        self._connection.write(head + chunk)


def send_whole(connection: PlainConnection, status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Send an answer."""
    sized: dict[str, Any] = {**headers, "Content-Length": len(body)}
    connection.write(head_of_answer(status, sized, time.time()) + body)
