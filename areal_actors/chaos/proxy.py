"""A TCP proxy between one process and the bus: while the proxy is paused, the process is partitioned.

Started as `python -m areal_actors.chaos.proxy HOST PORT`; it prints the port that it listens on and ends when its standard input
closes. Paused, it refuses nothing and delivers nothing, like a broken network; buffered data arrives afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading

CHUNK = 1 << 16


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward data until either side disconnects."""
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    writer.close()


async def serve(host: str, port: int) -> None:
    """Accept connections on a free loopback port and forward them to this server."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(forward(reader, upstream_writer), forward(upstream_reader, writer))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


def end_with_parent() -> None:
    """Exit when standard input closes: the parent holds the other end."""
    while os.read(0, 1):
        pass
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
