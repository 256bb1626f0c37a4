"""A bus over a real server that is killed and restarted."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest
from support.bus_cases import (
    Do,
    Double,
    Doubled,
    Ended,
    Happened,
    Progress,
    connected,
    no_delivery,
    numbers,
    stamp,
    take,
)

from areal_bus.nats import NatsBus
from areal_bus.server import EmbeddedServer


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    server = await EmbeddedServer.start(tmp_path / "server")
    yield server
    await server.stop()


@pytest.fixture
async def bus(server: EmbeddedServer) -> AsyncIterator[NatsBus]:
    async with connected(server) as bus:
        yield bus


async def killed_and_restarted(server: EmbeddedServer, away: float = 0.3) -> EmbeddedServer:
    os.kill(server.pid, signal.SIGKILL)
    await server.wait_dead()
    await asyncio.sleep(away)
    return await server.restart()


async def test_no_confirmed_event_is_lost_when_the_server_is_killed(server: EmbeddedServer) -> None:
    async with connected(server) as speaker, connected(server) as listener:
        places: dict[int, int] = {}

        async def speak() -> None:
            for n in range(3000):
                places[n] = await speaker.publish(Happened(n=n), stamp(f"event-{n}"))

        async with listener.events(Happened, consumer="a") as inbox:
            speaking = asyncio.create_task(speak())
            received = numbers(await take(inbox, 300, acknowledge=True))
            async with asyncio.timeout(300):
                again = await killed_and_restarted(server)
                await speaking
            received += numbers(await take(inbox, 2700, acknowledge=True))
        assert received == list(range(3000))
        assert [envelope.open(Happened).n async for envelope in listener.log()] == received
        assert list(places.values()) == list(range(1, 3001))
        await again.stop()


async def test_a_waiting_consumer_continues_soon_after_a_restart(server: EmbeddedServer) -> None:
    async with connected(server) as bus, bus.events(Happened, consumer="a") as inbox:
        await bus.publish(Happened(n=0), stamp())
        await take(inbox, 1, acknowledge=True)
        again = await killed_and_restarted(server)
        await bus.publish(Happened(n=1), stamp())
        assert numbers(await take(inbox, 1)) == [1]
        await again.stop()


async def test_a_consumer_of_the_last_events_receives_nothing_twice_over_a_restart(server: EmbeddedServer) -> None:
    async with connected(server) as bus:
        for n in range(6):
            await bus.publish(Happened(n=n) if n < 5 else Ended(n=n), stamp())
        async with bus.events(Happened, Ended, consumer="a", history="last") as inbox:
            assert numbers(await take(inbox, 2)) == [4, 5]
            again = await killed_and_restarted(server)
            await bus.publish(Happened(n=6), stamp())
            assert numbers(await take(inbox, 1)) == [6]
            assert await no_delivery(inbox)
        await again.stop()


async def test_no_work_is_lost_when_the_server_is_killed(server: EmbeddedServer) -> None:
    async with connected(server) as bus, bus.work(Do) as queue:
        done: set[int] = set()

        async def labour(until: set[int]) -> None:
            async with asyncio.timeout(300):
                while not until <= done:
                    for item in await queue.take(5):
                        await item.acknowledge()
                        done.update(numbers([item]))

        for n in range(3):
            await bus.publish(Do(n=n), stamp())
        (held,) = await queue.take(1)
        again = await killed_and_restarted(server)
        await held.acknowledge()
        await labour({1, 2})
        labouring = asyncio.create_task(labour({3}))
        third = await killed_and_restarted(again)
        await bus.publish(Do(n=3), stamp())
        await labouring
        await third.stop()


async def test_requests_telemetry_and_values_go_on_after_a_restart(server: EmbeddedServer) -> None:
    async with (
        connected(server) as bus,
        bus.requests(Double, group="g", address="g-0") as inbox,
        bus.telemetry(Progress) as progress,
    ):
        await bus.put("key", b"kept")
        again = await killed_and_restarted(server)
        assert await bus.get("key") == b"kept"
        asking = asyncio.create_task(bus.request(Double(n=2), stamp(), timeout=5))
        await bus.reply((await take(inbox, 1))[0].reply_to, Doubled(n=4), stamp())
        assert (await asking).n == 4
        await bus.publish(Progress(n=1), stamp())
        assert numbers(await take(progress, 1)) == [1]
        await again.stop()


async def test_a_consumer_continues_where_it_was_in_another_process_after_a_restart(server: EmbeddedServer) -> None:
    async with connected(server) as bus:
        for n in range(4):
            await bus.publish(Happened(n=n), stamp())
        async with bus.events(Happened, consumer="a") as inbox:
            await take(inbox, 2, acknowledge=True)
    again = await server.restart()
    async with connected(again) as bus, bus.events(Happened, consumer="a") as inbox:
        assert [delivery.replayed for delivery in await take(inbox, 4)] == [True, True, False, False]
    await again.stop()


async def test_a_reader_whose_consumer_the_server_forgot_continues(server: EmbeddedServer, bus: NatsBus) -> None:
    async with bus.events(Happened, consumer="a") as inbox:
        await bus.publish(Happened(n=0), stamp())
        await take(inbox, 1)
        async with await nats.connect(server.url, token=server.token) as client:
            stream = "AREAL_test_LOG"
            for consumer in await client.jetstream().consumers_info(stream):
                await client.jetstream().delete_consumer(stream, consumer.name)
        await bus.publish(Happened(n=1), stamp())
        assert numbers(await take(inbox, 1)) == [1]
