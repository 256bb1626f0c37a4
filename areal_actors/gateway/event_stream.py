"""Streamed answers: the head is sent soon, and a sign of life wherever nothing else is sent for a while.

An engine may take a long time for the first token. Proxies and load balancers cut connections on which nothing arrives,
and clients have time limits for the first byte. So the head waits for the first part only briefly: an error that comes
by then has a status.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, MutableMapping
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol

from aiohttp import web

HEAD_SECONDS = 0.5
"""Wait for the first part, or the error in its place, before the head is sent without it."""


EVENTS: Final = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
"""Headers of a streamed answer."""


class EventSink(Protocol):
    """An answer to which events are written, after its head."""

    @property
    def headers(self) -> MutableMapping[str, str]:
        """Headers of its head."""
        ...

    @property
    def prepared(self) -> bool:
        """True if the head is sent, or on its way."""
        ...

    async def begin(self) -> None:
        """Send the head, with the first events."""
        ...

    async def write(self, data: bytes) -> None:
        """Send events."""
        ...

    async def write_eof(self, data: bytes = b"") -> None:
        """Send the last events and end the answer."""
        ...


class EventStream(web.StreamResponse):
    """A streamed answer of aiohttp, whose head is sent together with its first part."""

    _send_headers_immediately = False

    def __init__(self, request: web.Request, headers: Mapping[str, str]) -> None:
        super().__init__(headers=headers)
        self._request = request

    async def begin(self) -> None:
        """Send the head, with the first events."""
        await self.prepare(self._request)


class LiveStream:
    """A streamed answer of server-sent events that shows signs of life.

    An event is written to the connection whole, so that those of the two tasks do not mix.
    """

    def __init__(self, response: EventSink, sign: bytes, seconds: float) -> None:
        """`sign` is sent after this number of seconds without another event."""
        self.response = response
        self._sign, self._seconds = sign, seconds
        self._head = asyncio.Lock()
        self._is_open = False
        """True once the head is on its way, before all events."""
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._signs: asyncio.Task[None] | None = None
        """Sends signs of life, from the first that is due on."""

    @property
    def has_begun(self) -> bool:
        """True if the head is sent: an error no longer has a status of its own."""
        return self.response.prepared

    def set_header(self, name: str, value: str) -> bytes:
        """Set a header. Returns it as a comment of the stream if the head is sent already, and nothing otherwise."""
        if not self.has_begun:
            self.response.headers[name] = value
            return b""
        return b"" if self.response.headers.get(name) == value else f": {name}: {value}\n\n".encode()

    async def write(self, events: bytes) -> None:
        """Send events, after the head."""
        if not self._is_open:
            await self._begin()
        self._last = asyncio.get_running_loop().time()
        await self.response.write(events)

    async def finish(self, events: bytes) -> None:
        """Send the last events and end the answer."""
        if not self._is_open:
            await self._begin()
        await self.response.write_eof(events)

    async def _begin(self) -> None:
        async with self._head:
            if not self._is_open:
                await self.response.begin()
                self._is_open = True

    @asynccontextmanager
    async def keep_alive(self) -> AsyncIterator[None]:
        """Send the head and signs of life while this is open; there is no task before the first is due."""
        self._look_after(HEAD_SECONDS)
        try:
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if self._signs is not None:
                self._signs.cancel()
                with suppress(asyncio.CancelledError, ConnectionError):
                    await self._signs

    def _look_after(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        if (left := self._seconds_left()) > 0:
            self._look_after(left)
        else:
            self._signs = asyncio.create_task(self._send_signs())

    def _seconds_left(self) -> float:
        """Time until a sign is due; the head is due at the first look."""
        return self._last + self._seconds - asyncio.get_running_loop().time() if self._last else 0.0

    async def _send_signs(self) -> None:
        while True:
            if (left := self._seconds_left()) > 0:
                await asyncio.sleep(left)
            else:
                await self.write(self._sign)
