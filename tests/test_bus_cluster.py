"""The bus over a cluster of three real NATS servers, whose leader and majority are lost and return."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import pytest
from support.bus_cases import KINDS, LEASE, Do, Double, Doubled, Happened, numbers, stamp, take
from support.live_run import RECIPE
from support.nats_cluster import NatsCluster

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import SetupError
from areal_actors.recipe.load import load
from areal_actors.run.preflight import check_bus_server
from areal_bus.cluster_watch import ClusterWatch
from areal_bus.errors import LogUnavailable
from areal_bus.nats import NatsBus
from areal_bus.users import credentials_of, servers_of

PATIENT = 300.0
MESSAGES = 200


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[NatsCluster]:
    async with NatsCluster(tmp_path / "cluster") as cluster:
        yield cluster


@asynccontextmanager
async def connected(url: str, *, retry_for_seconds: float = 120.0) -> AsyncIterator[NatsBus]:
    bus = await NatsBus.connect(
        url, "test", name="tester", kinds=KINDS, replicas=3, lease_seconds=LEASE, retry_for_seconds=retry_for_seconds
    )
    try:
        yield bus
    finally:
        await bus.close()


class Traffic:
    """Events, work and requests that flow while the cluster is disturbed; none is lost, doubled or out of order."""

    def __init__(self, speaker: NatsBus, listener: NatsBus, disturbed: asyncio.Task[None]) -> None:
        self.speaker, self.listener, self.disturbed = speaker, listener, disturbed
        self.places: list[int] = []
        self.received: list[int] = []
        self.done: set[int] = set()
        self.total = 0
        """Number of messages, once the last is known."""

    async def flow(self) -> None:
        async with asyncio.timeout(PATIENT), asyncio.TaskGroup() as tasks:
            for one in (self._speak(), self._labour(), self._listen()):
                tasks.create_task(one)
            await self.disturbed
        assert self.received == list(range(self.total))
        assert self.done == set(self.received)
        assert [envelope.open(Happened).n for envelope in await self.listener.read(self.places)] == self.received
        assert [envelope.open(Happened).n async for envelope in self.listener.log()] == self.received
        assert await self.listener.position("a") in range(1, self.places[-1] + 1)
        async with self.speaker.requests(Double, group="g", address="g-0") as inbox:
            async with asyncio.TaskGroup() as tasks:
                asking = tasks.create_task(self.listener.request(Double(n=2), stamp(), timeout=60))
                await self.speaker.reply((await take(inbox, 1))[0].reply_to, Doubled(n=4), stamp())
            assert asking.result().n == 4

    async def _speak(self) -> None:
        for n in itertools.count():
            if n >= MESSAGES and self.disturbed.done():
                self.total = n + 1
            self.places.append(await self.speaker.publish(Happened(n=n), stamp(f"event-{n}")))
            await self.speaker.publish(Do(n=n), stamp(f"work-{n}"))
            if self.total:
                return
            await asyncio.sleep(0.02)

    async def _labour(self) -> None:
        async with self.listener.work(Do) as queue:
            while not self.total or len(self.done) < self.total:
                for item in await queue.take(5):
                    await item.acknowledge()
                    self.done.update(numbers([item]))

    async def _listen(self) -> None:
        async with self.listener.events(Happened, consumer="a") as inbox:
            while not self.total or len(self.received) < self.total:
                self.received.extend(numbers(await take(inbox, 1, acknowledge=True)))


async def test_nothing_is_lost_when_the_leader_is_killed_and_comes_back(cluster: NatsCluster) -> None:
    async with connected(cluster.url) as speaker, connected(cluster.url) as first:
        leader = await cluster.leader("test")
        watch = ClusterWatch(first.streams)
        async with connected(cluster.url_of(leader)) as listener:

            async def disturb() -> None:
                change = asyncio.create_task(watch.next_change())
                while watch.leader != leader:  # noqa: ASYNC110 - it is looked up at intervals
                    await asyncio.sleep(0.05)
                cluster.kill(leader)
                found = await change
                assert found.reason.startswith(f"{leader} no longer leads stream AREAL_test_LOG"), found.reason
                assert found.leader == await cluster.leader("test") != leader
                cluster.start(leader)
                await cluster.until_ready()

            await Traffic(speaker, listener, asyncio.create_task(disturb())).flow()


@pytest.mark.long
async def test_nothing_is_lost_when_the_leader_is_paused(cluster: NatsCluster) -> None:
    async with connected(cluster.url) as speaker:
        leader = await cluster.leader("test")
        async with connected(cluster.url_of(leader)) as listener:

            async def disturb() -> None:
                await asyncio.sleep(1)
                cluster.pause(leader, stopped=True)
                await asyncio.sleep(20)
                cluster.pause(leader, stopped=False)
                await cluster.until_ready()

            await Traffic(speaker, listener, asyncio.create_task(disturb())).flow()


@pytest.mark.long
async def test_messages_wait_for_a_lost_majority(cluster: NatsCluster) -> None:
    async with (
        connected(cluster.url) as speaker,
        connected(cluster.url) as listener,
        connected(cluster.url, retry_for_seconds=2) as hasty,
    ):

        async def disturb() -> None:
            leader = await cluster.leader("test")
            other, _ = gone = [leader, next(name for name in cluster.names if name != leader)]
            for name in gone:
                cluster.kill(name)
            with pytest.raises(
                LogUnavailable, match=r"not written within 2 s: .*does a majority of the cluster's servers run"
            ):
                await hasty.publish(Happened(n=-1), stamp())
            await asyncio.sleep(15)
            for name in gone:
                cluster.start(name)
            await cluster.until_ready()
            assert other in cluster.names

        await Traffic(speaker, listener, asyncio.create_task(disturb())).flow()


async def test_a_request_through_another_server_reaches_a_responder_that_has_just_subscribed(
    cluster: NatsCluster,
) -> None:
    first, second, third = (connected(cluster.url_of(name)) for name in cluster.names)
    async with first as one, second as two, third as three:
        buses = [one, two, three]
        for n in range(60):
            server, client, address = buses[n % 3], buses[(n + 1) % 3], f"address-{n}"
            async with (
                server.requests(Double, group=f"group-{n}", address=address) as inbox,
                asyncio.TaskGroup() as tasks,
            ):
                asking = tasks.create_task(client.request(Double(n=n), stamp(), timeout=60, to=address))
                await server.reply((await take(inbox, 1))[0].reply_to, Doubled(n=2 * n), stamp())
            assert asking.result().n == 2 * n


async def test_more_replicas_than_the_cluster_has_servers_are_refused(cluster: NatsCluster) -> None:
    async with connected(cluster.url) as bus:
        await bus.streams.check_replicas(3)
        await bus.streams.check_replicas(3)
        with pytest.raises(LogUnavailable, match=r"5 replicas are refused: .*no suitable peers"):
            await bus.streams.check_replicas(5)
    settings = ["profile=embedded", f"bus.url={cluster.url}"]
    for replicas, refused in (
        (3, ""),
        (5, "start 5 servers of one cluster with JetStream, or set bus.replicas to at most their number"),
    ):
        recipe = load([RECIPE], [*settings, f"bus.replicas={replicas}"], CudaDevices(count=0, reason="none")).recipe
        with pytest.raises(SetupError, match=refused) if refused else nullcontext():
            await asyncio.to_thread(check_bus_server, recipe)


def test_a_url_names_several_servers_with_the_credentials_of_the_first() -> None:
    assert servers_of("nats://u:p@a:1,b:2, nats://u:p@c:3".replace(" ", "")) == [
        "nats://a:1",
        "nats://b:2",
        "nats://c:3",
    ]
    assert servers_of("tls://t@a:1,b:2") == ["tls://a:1", "tls://b:2"]
    assert credentials_of("nats://u%40:p%3A@a:1,b:2") == {"user": "u@", "password": "p:"}
    assert credentials_of("nats://t@a:1,b:2") == {"token": "t"}
    assert credentials_of("nats://a:1") == {}
