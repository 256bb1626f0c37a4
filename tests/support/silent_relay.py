"""A relay between clients and a server that cuts silent connections, as load balancers do."""

from __future__ import annotations

import asyncio
from contextlib import suppress

TICK_SECONDS = 0.1


class SilentRelay:
    """Forwards connections to a port of this machine. One on which nothing passes for `limit` ticks is cut.

    Silence is counted in turns of the event loop, not read from a clock: on a busy machine the server has its turns in
    between, too.
    """

    def __init__(self, port, limit=10):
        self.target, self.limit = port, limit
        self.port = 0
        self.ticks = self.cut = 0
        self._connections = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self._clock = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_):
        self._clock.cancel()
        self._server.close()
        for connection in tuple(self._connections):
            connection.close()

    def url(self, base_url):
        """An address of the server, through the relay."""
        return base_url.replace(f":{self.target}", f":{self.port}", 1)

    async def _tick(self):
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.ticks += 1
            for connection in tuple(self._connections):
                connection.silent += 1
                if connection.silent >= self.limit:
                    self.cut += 1
                    connection.close()

    async def _accept(self, reader, writer):
        try:
            there, onward = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection(writer, onward)
        self._connections.add(connection)
        try:
            await asyncio.gather(connection.pump(reader, onward), connection.pump(there, writer))
        finally:
            self._connections.discard(connection)
            connection.close()


class _Connection:
    def __init__(self, *writers):
        self.writers = writers
        self.silent = 0

    async def pump(self, reader, writer):
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                self.silent = 0
                writer.write(data)
                await writer.drain()
        writer.close()

    def close(self):
        for writer in self.writers:
            writer.transport.abort()
