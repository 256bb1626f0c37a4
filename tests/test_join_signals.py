"""A signal that comes while a host joins: every worker that was admitted ends, and leaves the run in order."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from areal_actors.core.devices import CudaDevices
from areal_actors.folder.run_folder import RunFolder, ServerAddress
from areal_actors.hosts import client
from areal_actors.hosts.client import JoinedHost
from areal_actors.hosts.run_connection import JoinOptions
from areal_actors.messages import JoinAnswer, JoinRun, LeaveRun, Objects
from areal_actors.messages.joining import LeaseRenewed
from areal_actors.recipe.load import load

RECIPE = Path(__file__).parent.parent / "recipes/gsm8k_grpo.toml"
SECONDS = 120.0


class Run:
    """A bus that admits workers, and has the signal come meanwhile."""

    def __init__(self, signal_at: int) -> None:
        self.host: Any = None
        self.signal_at = signal_at
        self.admitted: list[str] = []
        self.left: list[LeaveRun] = []

    async def request(self, request: Any, *_: object, **__: object) -> Any:
        if isinstance(request, LeaveRun):
            self.left.append(request)
        if not isinstance(request, JoinRun):
            return LeaseRenewed()
        self.admitted.append(f"reward_worker-{len(self.admitted)}")
        if len(self.admitted) == self.signal_at:
            self.host._stop("SIGTERM")
        return JoinAnswer(worker=self.admitted[-1], objects=Objects(port=1, host="127.0.0.1", token="t", share="test"))


@pytest.mark.parametrize("signal_at", [1, 2], ids=["the first", "the second"])
async def test_a_signal_during_the_admission_of_a_worker_ends_it(tmp_path, monkeypatch, signal_at):
    monkeypatch.setattr(client, "module_command", lambda *_: ["sleep", "600"])
    (tmp_path / "code").mkdir()
    (tmp_path / "logs").mkdir()
    run = Run(signal_at)
    address = ServerAddress(url="nats://127.0.0.1:1", token="", run="gsm8k-grpo", pid=0)
    run.host = JoinedHost(JoinOptions(address=address, role="reward_worker", count=3), RunFolder(tmp_path), run)
    run.host.recipe = load([RECIPE], ["profile=embedded"], CudaDevices(0, "none")).recipe
    async with asyncio.timeout(SECONDS):
        assert await run.host.serve() == 0
    assert len(run.admitted) == signal_at, "no other is added"
    assert sorted((one.worker, one.reason) for one in run.left) == [(name, "") for name in run.admitted]


async def test_a_signal_during_the_connection_ends_the_host(tmp_path, monkeypatch):
    closed = asyncio.Event()

    class Bus:
        async def close(self) -> None:
            closed.set()

    async def connect(*_: object, **__: object) -> Bus:
        signalled = asyncio.Event()
        monkeypatch.setattr(client.sys.stderr, "write", lambda _: signalled.set())
        os.kill(os.getpid(), signal.SIGTERM)
        await signalled.wait()
        return Bus()

    monkeypatch.setattr(client.NatsBus, "connect", connect)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = ServerAddress(url=f"nats://127.0.0.1:{listening.getsockname()[1]}", token="", run="gsm8k-grpo", pid=0)
        async with asyncio.timeout(SECONDS):
            assert (
                await client._join(
                    JoinOptions(address=address, role="reward_worker", wait_seconds=60), RunFolder(tmp_path)
                )
                == 0
            )
    assert closed.is_set()
