"""Links for network partitions: each process that a partition can target reaches the bus through its own TCP proxy.

A proxy is started as `python -m areal_actors.chaos.tcp_proxy HOST PORT`; it prints the port that it listens on and ends
when its standard input closes. Paused, it refuses nothing and delivers nothing, like a broken network; buffered data
arrives afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from areal_actors.chaos.settings import ChaosSettings
from areal_actors.core.module_command import module_command

LINKS = "links.json"
NATS_PORT = 4222
CHUNK = 1 << 16


def link_of(settings: ChaosSettings, folder: Path, process: str, url: str) -> str:
    """Returns the bus address for this process of the run in `folder`: `url`, or that of its link.

    Both have the same credentials.
    """
    path = folder / "chaos" / LINKS
    if not settings.injects("partition") or not path.is_file():
        return url
    if (port := msgspec.json.decode(path.read_bytes(), type=dict[str, int]).get(process)) is None:
        return url
    parts = urlsplit(url)
    credentials, _, _ = parts.netloc.rpartition("@")
    return f"{parts.scheme}://{credentials}{'@' if credentials else ''}127.0.0.1:{port}"


class Links:
    """The link processes of one launch of a run."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "chaos" / LINKS
        self.processes: dict[str, asyncio.subprocess.Process] = {}

    async def open(self, url: str, processes: list[str]) -> None:
        """Start a link for each of these processes, and write its port to a file for the process."""
        parts = urlsplit(url)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        ports = {}
        for process in processes:
            link = await asyncio.create_subprocess_exec(
                *module_command(
                    "areal_actors.chaos.tcp_proxy", parts.hostname or "127.0.0.1", str(parts.port or NATS_PORT)
                ),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
            assert link.stdout is not None
            self.processes[process] = link
            ports[process] = int(await link.stdout.readline())
        self.path.write_bytes(msgspec.json.encode(ports))

    async def close(self) -> None:
        """Kill all links."""
        self.path.unlink(missing_ok=True)
        for link in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                link.kill()
            await link.wait()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _serve(host: str, port: int) -> None:
    async def forward_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_forward(reader, upstream_writer), _forward(upstream_reader, writer))

    server = await asyncio.start_server(forward_connection, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(0)


def main(arguments: list[str]) -> None:
    """Forward connections to this host and port, and end with the parent."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    asyncio.run(_serve(arguments[0], int(arguments[1])))
