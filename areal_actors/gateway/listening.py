"""HTTP connections with a time limit for request heads: a client that sends one too slowly gets a 408 and is disconnected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class HttpConnections:
    """All open connections: protocol factory of the server, and lookup by request."""

    def __init__(self, server: Callable[[], asyncio.Protocol], head_seconds: float) -> None:
        """`server` is the factory of the HTTP protocol to wrap."""
        self._server = server
        self._head_seconds = head_seconds
        self._open: dict[asyncio.BaseProtocol, HttpConnection] = {}

    def __call__(self) -> asyncio.Protocol:
        """A protocol for a newly accepted connection."""
        http = self._server()
        return HttpConnection(http, self._head_seconds, self._open)

    def request_started(self, request: web.Request) -> HttpConnection | None:
        """Stop the timer of a request whose head has arrived; returns its connection."""
        if (connection := self._open.get(request.protocol)) is not None:
            connection.head_received()
        return connection


class HttpConnection(asyncio.Protocol):
    """Wraps the HTTP protocol; closes the connection if the head of a request takes too long."""

    def __init__(self, http: asyncio.Protocol, head_seconds: float, open_ones: dict[asyncio.BaseProtocol, HttpConnection]) -> None:
        self._http = http
        self._open = open_ones
        self._head_seconds = head_seconds
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._serving = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is no subclass
        self._open[self._http] = self
        self._wait_for_head()
        self._http.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.head_received()
        self._open.pop(self._http, None)
        self._http.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._timer is None and not self._serving:
            self._wait_for_head()
        self._http.data_received(data)

    def eof_received(self) -> bool | None:
        """See `asyncio.Protocol`."""
        return self._http.eof_received()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._http.pause_writing()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._http.resume_writing()

    def head_received(self) -> None:
        """Stop the timer: a body or a response follows."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __enter__(self) -> None:
        self._serving += 1

    def __exit__(self, *_: object) -> None:
        self._serving -= 1

    def _wait_for_head(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._head_seconds, self._too_slow)

    def _too_slow(self) -> None:
        self._timer = None
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(TOO_SLOW)
            self._transport.close()
