"""Streamed answers: the head is sent soon, and a sign of life wherever nothing else is sent for a while.

An engine may take a long time for the first token. Proxies and load balancers cut connections on which nothing arrives,
and clients have time limits for the first byte. So the head waits for the first part only briefly: an error that comes
by then has a status.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

from aiohttp import web

HEAD_SECONDS = 0.5
"""Wait for the first part, or the error in its place, before the head is sent without it."""


class EventStream(web.StreamResponse):
    """A streamed answer, whose head is sent together with its first part."""

    _send_headers_immediately = False


class LiveStream:
    """A streamed answer of server-sent events that shows signs of life.

    An event is written to the connection whole, so that those of the two tasks do not mix.
    """

    def __init__(self, request: web.Request, headers: Mapping[str, str], sign: bytes, seconds: float) -> None:
        """`sign` is sent after this number of seconds without another event."""
        self._request = request
        self.response: web.StreamResponse = EventStream(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache", **headers}
        )
        self._sign, self._seconds = sign, seconds
        self._head = asyncio.Lock()
        self._last = 0.0

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
        await self._begin()
        self._last = asyncio.get_running_loop().time()
        await self.response.write(events)

    async def finish(self, events: bytes) -> None:
        """Send the last events and end the answer."""
        await self._begin()
        await self.response.write_eof(events)

    async def _begin(self) -> None:
        async with self._head:
            if not self.response.prepared:
                await self.response.prepare(self._request)

    @asynccontextmanager
    async def keep_alive(self) -> AsyncIterator[None]:
        """Send the head and signs of life while this is open."""
        task = asyncio.create_task(self._keep_alive())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, ConnectionError):
                await task

    async def _keep_alive(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(HEAD_SECONDS)
        if not self._last:
            await self.write(self._sign)
        while True:
            silent = loop.time() - self._last
            if silent >= self._seconds:
                await self.write(self._sign)
            else:
                await asyncio.sleep(self._seconds - silent)
