"""HTTP connections with limits, so that idle ones keep no request out.

Request heads have a time limit, and connections a maximum number. At the limit a new connection takes the place of an
idle one: of the address with the most idle connections, the one that has been idle longest. One that is handling a
request keeps its place. If all are, the new one is refused.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Self, cast

import structlog
from aiohttp import web

from areal_bus.descriptors import descriptor_limit, is_out_of_descriptors

TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
# Clients do not compress requests, and aiohttp waits forever for the rest of a truncated compressed body.
OPTIONS: Final[dict[str, Any]] = {"access_log": None, "auto_decompress": False}
BACKLOG = 1024
"""Connections in the accept queue: a thousand clients may connect at once."""
RESERVED_DESCRIPTORS = 192
"""Descriptors that are left to the other work of a process."""
PAUSE_SECONDS = 0.1
"""Pause of the accept loop when the process has no descriptors left."""
SHUTDOWN_SECONDS = 1.0
"""Time for the other side to confirm the end of an encrypted connection."""
WARN_SECONDS = 60.0
"""Time between two warnings."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
logger = structlog.get_logger(__name__)


def most_connections(descriptors_each: int = 1) -> int:
    """Returns the number of connections for which this process has descriptors."""
    limit = descriptor_limit()
    return max((limit - min(RESERVED_DESCRIPTORS, limit * 3 // 4)) // descriptors_each, 1)


class OpenConnection:
    """One accepted connection."""

    def __init__(self, listener: HttpListener, address: str) -> None:
        self.listener, self.address = listener, address
        self.opening: asyncio.Task[None] | None = None
        """Task of the handshake, until the connection is there."""
        self.transport: asyncio.Transport | None = None

    def end(self) -> None:
        """Close the connection, with the reason where it is not encrypted."""
        if self.transport is None:
            if self.opening is not None:
                self.opening.cancel()
        elif self.transport.get_extra_info("ssl_object") is None:
            self.transport.write(TOO_MANY)
            self.transport.close()
        else:
            self.transport.abort()


class HttpConnection(web.RequestHandler):
    """Closes the connection if the head of a request takes too long.

    A context of a request that is handled stops its timer.
    """

    __slots__ = ("_head_seconds", "_place", "_serving", "_timer")

    def __init__(self, server: web.Server, head_seconds: float, place: OpenConnection) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **OPTIONS)
        self._head_seconds = head_seconds
        self._place = place
        self._timer: asyncio.TimerHandle | None = None
        self._serving = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._place.transport = cast(asyncio.Transport, transport)  # uvloop's is not of its class
        self._wait_for_head()
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """See `asyncio.Protocol`."""
        self._stop_timer()
        self._place.listener.release(self._place)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._timer is None and not self._serving:
            self._wait_for_head()
        super().data_received(data)

    def __enter__(self) -> Self:
        self._stop_timer()
        self._serving += 1
        self._place.listener.keep(self._place)
        return self

    def __exit__(self, *_: object) -> None:
        self._serving -= 1
        if not self._serving:
            self._place.listener.note_idle(self._place)

    def _wait_for_head(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._head_seconds, self._too_slow)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(TOO_SLOW)
            self.transport.close()


async def answer_in_place(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Handle a request and send its response, both while its connection keeps its place: a file may take long."""
    assert isinstance(request.protocol, HttpConnection)
    with request.protocol:
        response = await handler(request)
        with suppress(ConnectionError):  # the client is gone, which aiohttp handles
            await response.prepare(request)
            await response.write_eof()
        # aiohttp prepares what a handler returns; a file it would send again.
        return SentResponse(response) if isinstance(response, web.FileResponse) else response


class SentResponse(web.StreamResponse):
    """Stands for a response that has been sent."""

    def __init__(self, response: web.StreamResponse) -> None:
        super().__init__(status=response.status, reason=response.reason)
        self._response = response

    @property
    def keep_alive(self) -> bool | None:
        """True if the connection stays open, as the response has announced."""
        return self._response.keep_alive

    async def prepare(self, request: web.BaseRequest) -> None:
        """Does nothing."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Does nothing."""


MakeConnection = Callable[[web.Server, float, OpenConnection], HttpConnection]


class HttpListener:
    """Accepts connections for an aiohttp server, within limits."""

    def __init__(self, server: web.Server, head_seconds: float, most: int, make: MakeConnection | None = None) -> None:
        """`head_seconds`: for a handshake and for the head of a request; `most`: number of connections at a time.

        `make` makes the connections, where they are not those of this file.
        """
        make = make or HttpConnection
        self._make: Callable[[OpenConnection], HttpConnection] = lambda place: make(server, head_seconds, place)
        self._head_seconds, self._most = head_seconds, most
        self._places: set[OpenConnection] = set()
        self._idle: dict[str, dict[OpenConnection, None]] = {}
        """Idle connections of each address, the one that has been idle longest first."""
        self._accepting: list[asyncio.Task[None]] = []
        self._secure: ssl.SSLContext | None = None
        self._warned_at = -WARN_SECONDS
        self.port = 0

    async def start(self, host: str, port: int, secure: ssl.SSLContext | None) -> None:
        """Listen on all addresses of a host; port 0: a free one.

        Raises:
            OSError: the address cannot be used.
        """
        self._secure = secure
        sockets = await _listen(host, port)
        self.port = int(sockets[0].getsockname()[1])
        self._accepting = [asyncio.create_task(self._accept(listening)) for listening in sockets]

    def close(self) -> None:
        """Accept no more connections; those that are open go on."""
        for task in self._accepting:
            task.cancel()

    def keep(self, place: OpenConnection) -> None:
        """Note that a connection handles a request."""
        if (idle := self._idle.get(place.address)) is not None:
            idle.pop(place, None)
            if not idle:
                del self._idle[place.address]

    def note_idle(self, place: OpenConnection) -> None:
        """Note that a connection waits for a request."""
        if place in self._places:
            self._idle.setdefault(place.address, {})[place] = None

    def release(self, place: OpenConnection) -> None:
        """Note the end of a connection."""
        self._places.discard(place)
        self.keep(place)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    accepted, address = await loop.sock_accept(listening)
                except OSError as error:  # the client is gone already, or there are no descriptors
                    exhausted = is_out_of_descriptors(error)
                    if exhausted:
                        self._warn("the process has no file descriptors left for connections", str(error))
                        self._end_idle()
                    await asyncio.sleep(
                        PAUSE_SECONDS if exhausted else 0
                    )  # an error that stays must not occupy the event loop
                    continue
                try:
                    self._admit(accepted, str(address[0]))
                except Exception:  # one connection must not end the others
                    logger.exception("a connection could not be accepted")
                    accepted.close()
        finally:
            listening.close()

    def _admit(self, accepted: socket.socket, address: str) -> None:
        if len(self._places) >= self._most:
            self._warn(
                f"{self._most} connections are open, the most that this process takes: idle ones give way",
                f"newest: {address}",
            )
            if not self._end_idle():
                with suppress(OSError):
                    if self._secure is None:
                        accepted.send(TOO_MANY)
                accepted.close()
                return
        accepted.setblocking(False)
        place = OpenConnection(self, address)
        self._places.add(place)
        self.note_idle(place)
        place.opening = asyncio.create_task(self._open(place, accepted))
        # A task that is cancelled before its first step runs none of its code.
        place.opening.add_done_callback(lambda opening: accepted.close() if opening.cancelled() else None)

    async def _open(self, place: OpenConnection, accepted: socket.socket) -> None:
        limits: dict[str, float] = {}
        if self._secure is not None:
            limits = {"ssl_handshake_timeout": self._head_seconds, "ssl_shutdown_timeout": SHUTDOWN_SECONDS}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._make(place), accepted, ssl=self._secure, **limits
            )
        except BaseException as error:
            accepted.close()
            self.release(place)
            if not isinstance(
                error, OSError | asyncio.CancelledError
            ):  # of a handshake that failed, or of a connection that gave way
                raise
        finally:
            place.opening = None

    def _end_idle(self) -> bool:
        """Close the connection that has been idle longest of the address with the most of them.

        Returns False if none is idle.
        """
        if not self._idle:
            return False
        busiest = max(self._idle, key=lambda address: len(self._idle[address]))
        place = next(iter(self._idle[busiest]))
        self.release(place)
        place.end()
        return True

    def _warn(self, event: str, detail: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._warned_at >= WARN_SECONDS:
            self._warned_at = now
            logger.warning(event, detail=detail)


async def _listen(host: str, port: int) -> list[socket.socket]:
    """Returns a socket for each address of a host, all with one port."""
    addresses = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(addresses):
            listening = socket.socket(family)
            sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind((address[0], port or sockets[0].getsockname()[1], *address[2:]))
            listening.listen(BACKLOG)
            listening.setblocking(False)
    except OSError:
        for listening in sockets:
            listening.close()
        raise
    return sockets
