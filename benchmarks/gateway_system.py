"""Servers of the benchmark `gateway.py`: the gateway with its bus and a scripted engine, and the baselines."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psutil
from gateway_load import Endpoint
from history import ROOT

from areal_actors.core.actor_settings import processes_of
from areal_actors.core.values import SamplingParams, Task, Trajectory, WeightsLocation
from areal_actors.folder.run_folder import RunFolder, ServerAddress
from areal_actors.messages import (
    KINDS,
    EpisodeAbandoned,
    EpisodeScored,
    OpenSession,
    RunEpisode,
    SessionOpened,
    TrajectoryExported,
    WeightsLoaded,
    WeightsPublished,
)
from areal_actors.recipe.recipe import Recipe
from areal_bus.base import Stamp
from areal_bus.errors import NoResponder
from areal_bus.message import Event
from areal_bus.nats import NatsBus
from areal_bus.server import EmbeddedServer

RUN = "gateway"
CONTEXT = 32_768
CONCURRENCY = 2048
LEASE_SECONDS = 3600.0
START_SECONDS = 300.0
PUBLISHED_TOGETHER = 64
SERVER_CORE, REST_CORE = 0, 1


def pin(core: int, pid: int = 0) -> None:
    """Pin a process to a core, on Linux with two or more cores."""
    if sys.platform == "linux" and (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(pid, {core})


def recipe(folder: Path) -> Recipe:
    """Return a recipe of which only the gateway and the inference worker are started."""
    actors = {
        "session_manager": {"process": "gateway", "concurrency": CONCURRENCY},
        "inference_worker": {"process": "inference_worker", "concurrency": CONCURRENCY},
    }
    task = {"dataset": "arithmetic", "agent": "agents/gsm8k.py:Gsm8kAgent", "reward": "gsm8k"}
    stated = {"run": RUN, "steps": 1, "model": "embedded", "folder": str(folder), "task": task, "actors": actors}
    return msgspec.convert({**stated, "algorithm": {"name": "grpo"}, "generation": {"max_model_len": CONTEXT}}, Recipe)


class GatewaySystem:
    """The gateway and an engine in separate processes, connected by a NATS server."""

    def __init__(self, bus: NatsBus, pids: dict[str, int]) -> None:
        self.bus = bus
        self.pids = pids
        self.pid = pids["gateway"]
        self._count = 0
        self._open: dict[str, RunEpisode] = {}

    def _stamp(self) -> Stamp:
        self._count += 1
        return Stamp(id=f"benchmark-{self._count}", sender="benchmark", time=time.time())

    async def publish(self, events: Sequence[Event]) -> None:
        """Publish concurrently, in chunks."""
        for start in range(0, len(events), PUBLISHED_TOGETHER):
            await asyncio.gather(
                *(self.bus.publish(event, self._stamp()) for event in events[start : start + PUBLISHED_TOGETHER])
            )

    async def serve(self, model: Path) -> None:
        """Publish an empty weight version, and wait until the engine has loaded it and the gateway answers."""
        async with asyncio.timeout(START_SECONDS):
            async with self.bus.events(WeightsLoaded, consumer="benchmark", history="all") as loaded:
                location = WeightsLocation(folder="none", checksum="", model=str(model))
                await self.publish([WeightsPublished(weight_version=0, location=location)])
                await anext(loaded)
            while not await self._is_ready():  # noqa: ASYNC110 - polled over the bus
                await asyncio.sleep(0.05)
        await self.abandon_sessions()

    async def _is_ready(self) -> bool:
        try:
            await self.endpoints(1)
        except NoResponder:
            return False
        return True

    async def endpoints(self, count: int) -> list[Endpoint]:
        """Open sessions like a rollout worker."""
        opened = [self._open_session(f"{len(self._open) + number}-{self._count}") for number in range(count)]
        return [
            endpoint
            for start in range(0, count, PUBLISHED_TOGETHER)
            for endpoint in await asyncio.gather(*opened[start : start + PUBLISHED_TOGETHER])
        ]

    async def _open_session(self, episode: str) -> Endpoint:
        task = Task(id=f"task-{episode}", data={"question": "why?"})
        work = RunEpisode(episode=episode, group=f"group-{episode}", task=task, sampling=SamplingParams())
        opened: SessionOpened = await self.bus.request(
            OpenSession(work=work, lease_seconds=LEASE_SECONDS), self._stamp(), timeout=30
        )
        self._open[opened.session] = work
        address = urlsplit(opened.base_url)
        assert address.hostname is not None
        assert address.port is not None
        return Endpoint(host=address.hostname, port=address.port, path=address.path, key=opened.api_key)

    async def abandon_sessions(self) -> None:
        """Abandon every open session."""
        await self.publish(
            [EpisodeAbandoned(work=work, reason="agent", detail="measured") for work in self._open.values()]
        )
        self._open.clear()

    async def export(self) -> list[Trajectory]:
        """Score every open session and return the exported trajectories."""
        scored = [EpisodeScored(work=work, session=session, reward=1.0) for session, work in self._open.items()]
        self._open.clear()
        trajectories: list[Trajectory] = []
        async with (
            self.bus.events(TrajectoryExported, consumer="exports", history="new") as exported,
            asyncio.timeout(START_SECONDS),
        ):
            publishing = asyncio.ensure_future(self.publish(scored))
            while len(trajectories) < len(scored):
                event = (await anext(exported)).message
                assert isinstance(event, TrajectoryExported)
                trajectories.append(event.trajectory)
            await publishing
        return trajectories

    def resident_bytes(self) -> int:
        """Memory of the gateway's process."""
        return int(psutil.Process(self.pid).memory_info().rss)


@asynccontextmanager
async def gateway_system(
    folder: Path,
    model: Path,
    corpus: Path | None,
    delay_seconds: float,
    plan: Recipe | None = None,
    kind: str = "",
    checkout: Path = ROOT,
) -> AsyncIterator[GatewaySystem]:
    """Start a gateway whose engine answers after this delay.

    `plan` is another recipe than that of the benchmark `gateway.py`, and `kind` that of its session manager.
    `checkout` has the packages of gateway and engine.
    """
    plan, run_folder = plan or recipe(folder), RunFolder(folder / RUN)
    run_folder.create(plan)
    server = await EmbeddedServer.start(run_folder.nats)
    try:
        bus = await NatsBus.connect(
            server.url, RUN, name="benchmark", token=server.token, kinds=KINDS, blobs=run_folder.blobs
        )
        run_folder.announce(ServerAddress(url=server.url, token=server.token, run=RUN, pid=os.getpid()))
        arguments = [str(delay_seconds), str(corpus or ""), kind]
        address = run_folder.server()
        names = ["gateway", *processes_of(plan.actors.inference_worker)]
        with ExitStack() as stack:
            pids = {"nats-server": server.pid}
            for name in names:
                words = (str(run_folder.path), name, *arguments)
                core = SERVER_CORE if name == "gateway" else REST_CORE
                process = process_of("gateway_process.py", *words, core=core, address=address, checkout=checkout)
                pids[name] = stack.enter_context(process).pid
            made = GatewaySystem(bus, pids)
            try:
                await made.serve(model)
            except TimeoutError:
                failures = [run_folder.failure_of(name) for name in names]
                details = "; ".join(file.read_text() for file in failures if file.is_file())
                raise RuntimeError(
                    f"gateway and engine did not start within {START_SECONDS:g} s:"
                    f" {details or 'no failure file written'}"
                ) from None
            yield made
        await bus.close()
    finally:
        await server.stop()


class Floor:
    """A server without sessions."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self._port = port

    async def endpoints(self, count: int) -> list[Endpoint]:
        """Return the server's address `count` times."""
        return [Endpoint(host="127.0.0.1", port=self._port, path="/v1")] * count


@contextmanager
def floor(kind: str, model: Path, delay_seconds: float) -> Iterator[Floor]:
    """Start a baseline server: `echo`, `minimal`, `fast` or `fastapi`."""
    script = "gateway_fastapi.py" if kind == "fastapi" else "gateway_floor.py"
    with process_of(script, kind, str(model), str(delay_seconds), core=SERVER_CORE) as process:
        assert process.stdout is not None
        yield Floor(process.pid, int(process.stdout.readline()))


@contextmanager
def process_of(
    script: str, *arguments: str, core: int, address: ServerAddress | None = None, checkout: Path = ROOT
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process pinned to a core, with the packages of a checkout; it ends with this context."""
    command = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
    environment = {**os.environ, "PYTHONPATH": f"{checkout}:{checkout / 'bus'}"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=ROOT, env=environment) as process:
        pin(core, process.pid)
        if address is not None:
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(address) + b"\n")
            process.stdin.flush()
        yield process
        process.terminate()


def sampled(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Size of serialized trajectories: KB each, and bytes per trained token."""
    size = sum(len(msgspec.msgpack.encode(TrajectoryExported(trajectory=trajectory))) for trajectory in trajectories)
    tokens = sum(trajectory.sampled_tokens() for trajectory in trajectories)
    return {"export_kb": size / len(trajectories) / 1000, "bytes_per_token": size / tokens}
