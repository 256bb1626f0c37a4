"""The servers that `gateway/server.py` compares: our gateway with its bus and a scripted engine, and the floors."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psutil
from gateway_load import Door
from history import ROOT

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
from areal_actors.run_folder import RunFolder, ServerAddress
from areal_actors.values import SamplingParams, Task, Trajectory, WeightsLocation
from bus.base import Stamp
from bus.errors import NoResponder
from bus.message import Event
from bus.nats import NatsBus
from bus.server import EmbeddedServer

RUN = "gateway"
CONTEXT = 32_768
AT_ONCE = 2048
LEASE_SECONDS = 3600.0
START_SECONDS = 30.0
SAID_TOGETHER = 64
SERVER_CORE, REST_CORE = 0, 1


def pin(core: int, pid: int = 0) -> None:
    """Bind a process to a core, where the system can and has two."""
    if sys.platform == "linux" and (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(pid, {core})


def recipe(folder: Path) -> Recipe:
    """Only its gateway and its inference worker are started."""
    actors = {
        "session_manager": {"process": "gateway", "concurrency": AT_ONCE},
        "inference_worker": {"process": "inference_worker", "concurrency": AT_ONCE},
    }
    task = {"dataset": "arithmetic", "agent": "agents/gsm8k.py:Gsm8kAgent", "reward": "gsm8k"}
    stated = {"run": RUN, "steps": 1, "model": "embedded", "folder": str(folder), "task": task, "actors": actors}
    return msgspec.convert({**stated, "algorithm": {"name": "grpo"}, "generation": {"context": CONTEXT}}, Recipe)


class House:
    """Our gateway in a process of its own, an engine in another, and a NATS server between them."""

    def __init__(self, bus: NatsBus, pids: dict[str, int]) -> None:
        self.bus = bus
        self.pids = pids
        self.pid = pids["gateway"]
        self._count = 0
        self._open: dict[str, RunEpisode] = {}

    def _stamp(self) -> Stamp:
        self._count += 1
        return Stamp(id=f"benchmark-{self._count}", sender="benchmark", time=time.time())

    async def say(self, events: Sequence[Event]) -> None:
        """Publish, many at once."""
        for start in range(0, len(events), SAID_TOGETHER):
            await asyncio.gather(*(self.bus.publish(event, self._stamp()) for event in events[start : start + SAID_TOGETHER]))

    async def serve(self, model: Path) -> None:
        """Publish weights, which there are none of, and wait until the engine has them and the gateway answers."""
        async with asyncio.timeout(START_SECONDS):
            async with self.bus.events(WeightsLoaded, consumer="benchmark", history="all") as heard:
                location = WeightsLocation(folder="none", checksum="", model=str(model))
                await self.say([WeightsPublished(weight_version=0, location=location)])
                await anext(heard)
            while not await self._is_there():  # noqa: ASYNC110 - asked over the bus
                await asyncio.sleep(0.05)
        await self.leave()

    async def _is_there(self) -> bool:
        try:
            await self.doors(1)
        except NoResponder:
            return False
        return True

    async def doors(self, count: int) -> list[Door]:
        """Open sessions the way rollout workers do."""
        opened = [self._opened(f"{len(self._open) + number}-{self._count}") for number in range(count)]
        return [door for start in range(0, count, SAID_TOGETHER) for door in await asyncio.gather(*opened[start : start + SAID_TOGETHER])]

    async def _opened(self, episode: str) -> Door:
        task = Task(id=f"task-{episode}", data={"question": "why?"})
        work = RunEpisode(episode=episode, group=f"group-{episode}", task=task, sampling=SamplingParams())
        opened: SessionOpened = await self.bus.request(OpenSession(work=work, lease_seconds=LEASE_SECONDS), self._stamp(), timeout=30)
        self._open[opened.session] = work
        address = urlsplit(opened.base_url)
        assert address.hostname is not None
        assert address.port is not None
        return Door(host=address.hostname, port=address.port, path=address.path, key=opened.api_key)

    async def leave(self) -> None:
        """Abandon every open session."""
        await self.say([EpisodeAbandoned(work=work, reason="agent", detail="measured") for work in self._open.values()])
        self._open.clear()

    async def export(self) -> list[Trajectory]:
        """Score every open session, and hear the trajectories."""
        scored = [EpisodeScored(work=work, session=session, reward=1.0) for session, work in self._open.items()]
        self._open.clear()
        trajectories: list[Trajectory] = []
        async with self.bus.events(TrajectoryExported, consumer="exports", history="new") as heard, asyncio.timeout(START_SECONDS):
            saying = asyncio.ensure_future(self.say(scored))
            while len(trajectories) < len(scored):
                event = (await anext(heard)).message
                assert isinstance(event, TrajectoryExported)
                trajectories.append(event.trajectory)
            await saying
        return trajectories

    def resident_bytes(self) -> int:
        """Memory of the gateway's process."""
        return int(psutil.Process(self.pid).memory_info().rss)


@asynccontextmanager
async def house(folder: Path, model: Path, corpus: Path | None, delay_seconds: float) -> AsyncIterator[House]:
    """A gateway whose engine answers after this delay."""
    plan, run_folder = recipe(folder), RunFolder(folder / RUN)
    run_folder.create(plan)
    server = await EmbeddedServer.start(run_folder.nats)
    try:
        bus = await NatsBus.connect(server.url, RUN, name="benchmark", token=server.token, kinds=KINDS, blobs=run_folder.blobs)
        run_folder.announce(ServerAddress(url=server.url, token=server.token, run=RUN, pid=os.getpid()))
        arguments = [str(delay_seconds), str(corpus or "")]
        address = run_folder.server()
        with (
            _process("gateway_process.py", str(run_folder.path), "gateway", *arguments, core=SERVER_CORE, address=address) as gateway,
            _process("gateway_process.py", str(run_folder.path), "inference_worker", *arguments, core=REST_CORE, address=address) as engine,
        ):
            made = House(bus, {"gateway": gateway.pid, "inference_worker": engine.pid, "nats-server": server.pid})
            try:
                await made.serve(model)
            except TimeoutError:
                failures = [run_folder.failure_of(name) for name in ("gateway", "inference_worker")]
                told = "; ".join(file.read_text() for file in failures if file.is_file())
                raise RuntimeError(f"gateway and engine did not come up within {START_SECONDS:g} s: {told or 'no word of why'}") from None
            yield made
        await bus.close()
    finally:
        await server.stop()


class Floor:
    """A server without sessions."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self._port = port

    async def doors(self, count: int) -> list[Door]:
        """All the same."""
        return [Door(host="127.0.0.1", port=self._port, path="/v1")] * count


@contextmanager
def floor(kind: str, model: Path, delay_seconds: float) -> Iterator[Floor]:
    """`echo`, `minimal`, `fast` or `fastapi`."""
    script = "gateway_fastapi.py" if kind == "fastapi" else "gateway_floor.py"
    with _process(script, kind, str(model), str(delay_seconds), core=SERVER_CORE) as process:
        assert process.stdout is not None
        yield Floor(process.pid, int(process.stdout.readline()))


@contextmanager
def _process(script: str, *arguments: str, core: int, address: ServerAddress | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A process on a core of its own, until its standard input is closed."""
    command = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        pin(core, process.pid)
        if address is not None:
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(address) + b"\n")
            process.stdin.flush()
        yield process
        process.terminate()


def sampled(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Size of trajectories as they travel: KB each, and bytes per trained token."""
    size = sum(len(msgspec.msgpack.encode(TrajectoryExported(trajectory=trajectory))) for trajectory in trajectories)
    tokens = sum(trajectory.sampled_tokens() for trajectory in trajectories)
    return {"export_kb": size / len(trajectories) / 1000, "bytes_per_token": size / tokens}
