"""The gateway in a container without a network: connections to a Unix socket go on to the gateway of an episode."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

CHUNK = 1 << 16
RELAY_PORT = 17429
"""Port on the container's loopback interface where agents find the gateway."""


class _Gateway(NamedTuple):
    host: str
    port: int
    is_encrypted: bool


class GatewayRelay:
    """Passes the connections of one container on; the gateway may change from episode to episode."""

    def __init__(self) -> None:
        self._gateway: _Gateway | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, path: Path) -> None:
        """Listen on a Unix socket that any user of the container may open."""
        # Made without a suspension, at which a cancelled start would leave an open socket.
        self._server = await asyncio.start_unix_server(self._accept, path, start_serving=False)
        await self._server.start_serving()
        await asyncio.to_thread(path.chmod, 0o666)

    def reach(self, base_url: str) -> str:
        """Lead connections to this address from now on; returns the address inside the container."""
        parts = urlsplit(base_url)
        is_encrypted = parts.scheme == "https"
        self._gateway = _Gateway(parts.hostname or "", parts.port or (443 if is_encrypted else 80), is_encrypted)
        return urlunsplit(("http", f"127.0.0.1:{RELAY_PORT}", *parts[2:]))

    async def close(self) -> None:
        """End the server and its connections."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        with suppress(OSError, asyncio.CancelledError):
            await self._relay(reader, writer)
        await _close(writer)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._gateway is not None, "`reach` names the gateway before an agent runs"
        host, port, is_encrypted = self._gateway
        context = ssl.create_default_context() if is_encrypted else None
        gateway_reader, gateway_writer = await asyncio.open_connection(host, port, ssl=context)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_copy(reader, gateway_writer))
                group.create_task(_copy(gateway_reader, writer))
        except* OSError:
            pass
        finally:
            await _close(gateway_writer)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy to the end of the stream, and pass the end on."""
    while chunk := await reader.read(CHUNK):
        writer.write(chunk)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
    else:
        writer.close()
