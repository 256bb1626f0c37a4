"""Gateways of other hosts are admitted, and replaced when they are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.clock import jumping_time
from test_gateway_shares import WORKER, recipe

from areal_actors.core.watchdog_settings import WatchdogSettings
from areal_actors.folder.run_folder import RunFolder
from areal_actors.hosts.admission import SPARE_CONNECTIONS, Joining
from areal_actors.messages import (
    ActorFailed,
    GatewayKeys,
    JoinAnswer,
    JoinRun,
    WorkerLeft,
)
from areal_actors.recipe.recipe import Recipe
from areal_actors.supervision.liveness import Leases, WatchClock
from areal_bus.message import Event


class Server:
    """Admits workers to the bus, and notes which it has expelled."""

    certificate = None
    keeper: object | None = None

    def __init__(self) -> None:
        self.expelled: list[str] = []
        self.addresses = SimpleNamespace(processes={"control": ""})

    async def admit(self, _: Recipe, worker: str, actor: str = "") -> tuple[str, str]:
        return worker, actor

    async def expel(self, worker: str) -> None:
        await asyncio.sleep(1.0)
        self.expelled.append(worker)


class Admission:
    """The admission of workers to a run, without a bus; keeps what is published and started."""

    def __init__(self, folder: Path, *settings: str) -> None:
        (folder / "secret").write_bytes(b"secret")
        self.published: list[Event] = []
        self.started: list[str] = []
        self.server = Server()
        health = SimpleNamespace(leases=Leases(WatchdogSettings()), clock=WatchClock(0.0), let_go=None)
        given: Any = (recipe(*settings), RunFolder(folder), None, self.server, health, self._publish, self._start)
        self.joining = Joining(*given)

    async def _publish(self, event: Event) -> None:
        self.published.append(event)

    async def _start(self, processes: Sequence[str]) -> None:
        self.started += processes

    async def join(self, role: str = "session_manager", **more: bool) -> JoinAnswer:
        request = JoinRun(role=role, host="other", version="", code=self.joining.code, **more)
        return await self.joining._join(request)


async def test_a_worker_for_which_the_bus_has_no_connection_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: Any
) -> None:
    admission = Admission(tmp_path, "gateway.host=10.0.0.1")
    admission.server.keeper = object()
    monkeypatch.setattr("areal_actors.hosts.admission.max_connections", lambda: SPARE_CONNECTIONS + 3)
    answers = [await admission.join("reward_worker") for _ in range(3)]
    assert [answer.refused for answer in answers[:2]] == ["", ""]
    assert "its bus has connections for 2 remote workers; raise the hard limit of descriptors" in answers[2].refused


async def test_a_lost_gateway_is_served_by_a_spare_or_after_five_seconds_by_the_runs_own_host(tmp_path: Path) -> None:
    admission = Admission(tmp_path, "gateway.host=10.0.0.1")
    with jumping_time():
        first, spare = await admission.join(), await admission.join()
        assert first.gateway == GatewayKeys(actor="session_manager-1", secret=b"secret")
        assert (first.user, first.password) == (WORKER, "session_manager-1")
        assert spare.refused
        assert spare.later
        leaving = asyncio.create_task(admission.joining._leave(WORKER, "no heartbeat"))
        await asyncio.sleep(0.5)
        assert (await admission.join()).later, "the bus still accepts what the lost one sends"
        await leaving
        assert admission.server.expelled == [WORKER]
        assert admission.published[1:] == [
            ActorFailed(actor="session_manager-1", process=WORKER, reason="no heartbeat"),
            WorkerLeft(worker=WORKER, reason="no heartbeat", actor="session_manager-1"),
        ]
        second = await admission.join()
        assert second.worker == "session_manager-10001"
        await asyncio.sleep(10.0)
        assert admission.started == []
        await admission.joining._leave(second.worker, "")
        await asyncio.sleep(4.0)
        assert admission.started == []
        await asyncio.sleep(2.0)
        assert admission.started == ["gateway-1"]
        assert (await admission.join()).later


async def test_a_gateway_that_agents_could_not_reach_on_the_runs_own_host_waits_for_another(tmp_path: Path) -> None:
    admission = Admission(tmp_path, "gateway.host=127.0.0.1", "actors.session_manager.count=1")
    with jumping_time():
        assert (await admission.join("rollout_worker")).worker, "its agents call a gateway of another host"
        await admission.joining._leave((await admission.join()).worker, "no heartbeat")
        await asyncio.sleep(60.0)
        assert admission.started == []
        assert (await admission.join()).gateway is not None


async def test_a_run_that_encrypts_admits_no_gateway_that_does_not(tmp_path: Path) -> None:
    admission = Admission(
        tmp_path, "gateway.host=10.0.0.1", "gateway.certificate=a.pem", "gateway.certificate_key=a.key"
    )
    refused = await admission.join()
    assert (
        "its gateways encrypt (gateway.certificate), each with a certificate of its own host: add --set"
        in refused.refused
    )
    assert not refused.later
    assert (await admission.join(encrypts=True)).gateway is not None


async def test_a_run_that_leaves_no_gateway_to_other_hosts_admits_none(tmp_path: Path) -> None:
    admission = Admission(tmp_path, "gateway.joined=0", "gateway.host=127.0.0.1")
    answer = await admission.join()
    assert (answer.refused, answer.later) == (
        "it leaves no gateway to other hosts; start it with gateway.joined=1",
        False,
    )
    assert "agents on this host cannot reach the gateway" in (await admission.join("rollout_worker")).refused
