"""HTTP connections with a time limit for request heads: a client that sends one too slowly gets a 408 and is disconnected."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from areal_actors.core.errors import SetupError
from areal_actors.core.settings import GatewaySettings
from bus.tls import Certificate

TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
# Clients do not compress requests, and aiohttp waits forever for the rest of a truncated compressed body.
OPTIONS: Final[dict[str, Any]] = {"access_log": None, "auto_decompress": False}


def encryption(config: GatewaySettings) -> ssl.SSLContext | None:
    """Returns the context of a gateway that encrypts; None for plain HTTP.

    Raises:
        SetupError: certificate or key cannot be used.
    """
    if not config.certificate:
        return None
    files = (Path(config.certificate).expanduser(), Path(config.certificate_key).expanduser())
    try:
        return Certificate(certificate=files[0], key=files[1], fingerprint="").context()
    except OSError as error:
        raise SetupError(
            f"gateway.certificate, gateway.certificate_key: cannot be used ({error}); name PEM files of a certificate and of its key, "
            "which has no password"
        ) from error


class HttpConnection(web.RequestHandler):
    """Closes the connection if the head of a request takes too long; a context of a request that is handled stops its timer."""

    __slots__ = ("_head_seconds", "_serving", "_timer")

    def __init__(self, server: web.Server, head_seconds: float) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **OPTIONS)
        self._head_seconds = head_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._serving = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._wait_for_head()
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """See `asyncio.Protocol`."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._timer is None and not self._serving:
            self._wait_for_head()
        super().data_received(data)

    def __enter__(self) -> None:
        self._stop_timer()
        self._serving += 1

    def __exit__(self, *_: object) -> None:
        self._serving -= 1

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
