"""A cluster of real nats-server processes on this host, whose servers can be killed, paused and started again."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nats import connect, errors

from areal_actors.core.free_ports import find_free_ports
from areal_bus.server import find_binary
from areal_bus.subjects import log_stream

PATIENT = 120.0
USER = "tester"


class NatsCluster:
    """Servers `n0`, `n1`, … of one cluster; a context that ends and removes them."""

    def __init__(self, folder: Path, size: int = 3, host: str = "127.0.0.1") -> None:
        self.folder, self.host = folder, host
        self.password = secrets.token_hex(8)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.names = [f"n{number}" for number in range(size)]
        first = find_free_ports(3 * size)
        self.ports, self._monitoring, self._routes = (
            list(range(start, start + size)) for start in range(first, first + 3 * size, size)
        )

    @property
    def url(self) -> str:
        """Address of all servers, for `bus.url`."""
        return f"nats://{USER}:{self.password}@" + ",".join(f"{self.host}:{port}" for port in self.ports)

    def url_of(self, *names: str) -> str:
        """Address of some of the servers."""
        return f"nats://{USER}:{self.password}@" + ",".join(
            f"{self.host}:{self.ports[self.names.index(name)]}" for name in names
        )

    async def __aenter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in self.names:
            self.start(name)
        try:
            await self.until_ready()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the servers."""
        for process in self.processes.values():
            process.kill()
            process.wait()

    def start(self, name: str) -> None:
        """Start a server, or start it again on its store."""
        number = self.names.index(name)
        config: dict[str, Any] = {
            "server_name": name,
            "listen": f"{self.host}:{self.ports[number]}",
            "http": f"127.0.0.1:{self._monitoring[number]}",
            "max_payload": 1 << 20,
            "jetstream": {"store_dir": str(self.folder / name / "store")},
            "authorization": {"user": USER, "password": self.password},
            "cluster": {
                "name": "areal",
                "listen": f"127.0.0.1:{self._routes[number]}",
                "routes": [f"nats-route://127.0.0.1:{port}" for port in self._routes],
            },
        }
        (self.folder / name).mkdir(exist_ok=True)
        file = self.folder / name / "nats-server.conf"
        file.write_text(json.dumps(config))
        with (self.folder / name / "log.txt").open("ab") as log:
            self.processes[name] = subprocess.Popen([find_binary(), "-c", str(file)], stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        """kill -9."""
        self.processes[name].kill()
        self.processes[name].wait()

    def pause(self, name: str, *, stopped: bool) -> None:
        """SIGSTOP, or SIGCONT."""
        self.processes[name].send_signal(signal.SIGSTOP if stopped else signal.SIGCONT)

    async def until_ready(self) -> None:
        """Wait until the servers that run have a leader and all of them answer as members."""
        await self._until("the cluster has no leader", lambda: asyncio.to_thread(self._is_ready))

    def _is_ready(self) -> bool:
        alive = [number for number, name in enumerate(self.names) if self.processes[name].poll() is None]
        return all(self._healthy(self._monitoring[number]) for number in alive)

    def _healthy(self, port: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2) as answer:
                return bool(json.load(answer)["status"] == "ok")
        except (OSError, ValueError):
            return False

    async def leader(self, run: str, other_than: str = "") -> str:
        """Wait for the leader of a run's log; returns its name."""
        found: list[str] = []

        async def look() -> bool:
            alive = [name for name in self.names if self.processes[name].poll() is None]
            try:
                client = await connect([self.url_of(name) for name in alive], allow_reconnect=False, connect_timeout=1)
                try:
                    info = await client.jetstream().stream_info(log_stream(run))
                finally:
                    await client.close()
            except (OSError, TimeoutError, errors.Error):
                return False
            found[:] = (
                [str(info.cluster.leader)] if info.cluster and info.cluster.leader not in (None, "", other_than) else []
            )
            return bool(found)

        await self._until(f"{log_stream(run)} has no leader", look)
        return found[0]

    async def _until(self, otherwise: str, check: Any) -> None:
        until = time.monotonic() + PATIENT
        while not await check():
            assert time.monotonic() < until, f"{otherwise}\n{self._logs()}"
            await asyncio.sleep(0.1)

    def _logs(self) -> str:
        """The last lines of each server's log, and what a server that ended left as its code."""
        return "\n".join(
            f"{name} ({process.poll()}): {(self.folder / name / 'log.txt').read_text()[-2000:]}"
            for name, process in self.processes.items()
        )
