"""Links for network partitions: each process that a partition can target reaches the bus through its own link."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from areal_actors.chaos.settings import ChaosSettings

LINKS = "links.json"
NATS_PORT = 4222


def link_of(settings: ChaosSettings, folder: Path, process: str, url: str) -> str:
    """Returns the bus address for this process of the run in `folder`: `url`, or that of its link with the same credentials."""
    path = folder / "chaos" / LINKS
    if not settings.injects("partition") or not path.is_file():
        return url
    port = msgspec.json.decode(path.read_bytes(), type=dict[str, int]).get(process)
    if port is None:
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
                *(sys.executable, "-m", "areal_actors.chaos.proxy", parts.hostname or "127.0.0.1", str(parts.port or NATS_PORT)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
            assert link.stdout is not None
            self.processes[process] = link
            ports[process] = int(await link.stdout.readline())
        self.path.write_bytes(msgspec.json.encode(ports))

    def pid(self, process: str) -> int:
        """Returns the process id of this process's link."""
        return self.processes[process].pid

    async def close(self) -> None:
        """Kill all links."""
        self.path.unlink(missing_ok=True)
        for link in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                link.kill()
            await link.wait()
