"""Consumers of one process that share a reader of the log: each receives every event once, while others come, go or are
slow."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import ClassVar

import aiohttp
import pytest
from support.bus_cases import KINDS, Ended, Happened, Progress, numbers, stamp, take

from areal_bus import nats_reader
from areal_bus.base import Delivery, Envelope, Subscription
from areal_bus.errors import BusError, EventsTrimmed
from areal_bus.message import Telemetry
from areal_bus.nats import NatsBus
from areal_bus.nats_shared import _WAITING
from areal_bus.server import EmbeddedServer


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    server = await EmbeddedServer.start(tmp_path / "server")
    yield server
    await server.stop()


@pytest.fixture
async def bus(server: EmbeddedServer) -> AsyncIterator[NatsBus]:
    bus = await NatsBus.connect(server.url, "test", name="process", token=server.token, kinds=KINDS, shares_log=True)
    yield bus
    await bus.close()


async def publish(bus: NatsBus, first: int, end: int) -> None:
    for n in range(first, end):
        await bus.publish(Happened(n=n) if n % 3 else Ended(n=n), stamp(f"event-{n}"))


async def readers(bus: NatsBus) -> list[str]:
    return (await bus.streams.api(f"CONSUMER.NAMES.{bus.streams.log}", {}))["consumers"] or []


async def test_past_events_come_from_a_reader_of_its_own_and_new_ones_from_one_for_all(bus: NatsBus) -> None:
    await publish(bus, 0, 30)
    async with AsyncExitStack() as stack:
        inboxes = [
            await stack.enter_async_context(bus.events(Happened, Ended, consumer=name)) for name in ("a", "b", "c")
        ]
        assert [inbox.backlog for inbox in inboxes] == [30, 30, 30]
        await publish(bus, 30, 200)
        for inbox in inboxes:
            assert numbers(await take(inbox, 200, acknowledge=True)) == list(range(200))
        while len(await readers(bus)) > 1:  # noqa: ASYNC110 - the server removes them
            await asyncio.sleep(0.01)
    while await readers(bus):  # noqa: ASYNC110 - the server removes it
        await asyncio.sleep(0.01)
    assert [await bus.position(name) for name in ("a", "b", "c")] == [200, 200, 200]
    async with bus.events(Happened, consumer="a") as inbox:
        assert all(delivery.replayed for delivery in await take(inbox, 133))
        await publish(bus, 200, 203)
        assert numbers(await take(inbox, 2)) == [200, 202]


async def take_envelopes(events: AsyncIterator[Envelope], count: int) -> list[int]:
    """Sequences of the next events."""
    return [(await anext(events)).sequence for _ in range(count)]


async def test_followers_of_the_log_and_consumers_have_one_reader(bus: NatsBus) -> None:
    await publish(bus, 0, 30)
    async with bus.events(Happened, consumer="a") as inbox:
        display, loop = bus.log(follow=True), bus.log(after=10, follow=True)
        assert await take_envelopes(display, 30) == list(range(1, 31))
        assert await take_envelopes(loop, 20) == list(range(11, 31))
        await publish(bus, 30, 60)
        assert await take_envelopes(display, 30) == await take_envelopes(loop, 30) == list(range(31, 61))
        assert numbers(await take(inbox, 40)) == [n for n in range(60) if n % 3]
        while len(await readers(bus)) > 1:  # noqa: ASYNC110 - the server removes them
            await asyncio.sleep(0.01)
        await display.aclose()
        await publish(bus, 60, 61)
        assert await take_envelopes(loop, 1) == [61]
        await loop.aclose()
    while await readers(bus):  # noqa: ASYNC110 - the server removes it
        await asyncio.sleep(0.01)


async def test_a_follower_that_falls_behind_reads_every_event_in_order(bus: NatsBus) -> None:
    slow, quick = bus.log(follow=True), bus.log(follow=True)
    await publish(bus, 0, 1)
    assert await take_envelopes(slow, 1) == await take_envelopes(quick, 1) == [1]
    await publish(bus, 1, 2 * _WAITING)
    assert await take_envelopes(quick, 2 * _WAITING - 1) == list(range(2, 2 * _WAITING + 1))
    assert await take_envelopes(slow, 2 * _WAITING - 1) == list(range(2, 2 * _WAITING + 1))
    await slow.aclose()
    await quick.aclose()


async def test_a_follower_of_trimmed_events_has_that_error(bus: NatsBus) -> None:
    await publish(bus, 0, 20)
    await bus.trim(15)
    with pytest.raises(EventsTrimmed):
        await take_envelopes(bus.log(after=5, follow=True), 1)
    assert await take_envelopes(bus.log(follow=True), 2) == [15, 16]


async def test_a_consumer_that_falls_behind_delays_no_other_and_receives_everything(bus: NatsBus) -> None:
    async with (
        bus.events(Happened, Ended, consumer="slow") as slow,
        bus.events(Happened, Ended, consumer="quick") as quick,
    ):
        await publish(bus, 0, 3 * _WAITING)
        assert numbers(await take(quick, 3 * _WAITING)) == list(range(3 * _WAITING))
        assert numbers(await take(slow, 3 * _WAITING)) == list(range(3 * _WAITING))
        await publish(bus, 3 * _WAITING, 3 * _WAITING + 5)
        assert (
            numbers(await take(slow, 5)) == numbers(await take(quick, 5)) == list(range(3 * _WAITING, 3 * _WAITING + 5))
        )


async def test_consumers_that_come_and_go_while_events_are_published_receive_all_of_their_kinds(bus: NatsBus) -> None:
    dice, total = random.Random(3), 1200

    async def consume(name: str) -> None:
        kinds = dice.choice([(Happened,), (Ended,), (Happened, Ended)])
        after = dice.choice([0, 0, 50])
        wanted = [n for n in range(after, total) if (Happened if n % 3 else Ended) in kinds]
        await asyncio.sleep(dice.uniform(0.0, 0.5))
        for _ in range(dice.randint(0, 2)):
            async with bus.events(*kinds, consumer=name, after=after) as inbox:
                await take(inbox, dice.randint(1, 20))
        async with bus.events(*kinds, consumer=name, after=after) as inbox:
            received: list[int] = []
            while len(received) < len(wanted):
                received += numbers(await take(inbox, 1))
                if dice.random() < 0.01:
                    await asyncio.sleep(dice.uniform(0.0, 0.2))
            assert received == wanted

    await asyncio.wait_for(
        asyncio.gather(publish(bus, 0, total), *(consume(f"consumer-{number}") for number in range(12))), 300
    )


async def test_consumers_continue_after_the_server_was_killed(server: EmbeddedServer, bus: NatsBus) -> None:
    async with bus.events(Happened, Ended, consumer="a") as first, bus.events(Happened, consumer="b") as second:
        await publish(bus, 0, 20)
        assert numbers(await take(first, 10)) == list(range(10))
        os.kill(server.pid, signal.SIGKILL)
        await server.wait_dead()
        again = await server.restart()
        await publish(bus, 20, 40)
        assert numbers(await take(first, 30)) == list(range(10, 40))
        assert numbers(await take(second, 26)) == [n for n in range(40) if n % 3]
        await bus.close()
        await again.stop()


async def test_an_error_of_the_shared_reader_is_one_of_every_consumer(
    bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bus.events(Happened, consumer="a") as first, bus.events(Ended, consumer="b") as second:
        monkeypatch.setattr(nats_reader, "unpack", lambda *_, **__: 1 / 0)
        await publish(bus, 0, 1)
        for inbox in (first, second):
            with pytest.raises(ZeroDivisionError):
                await take(inbox, 1)


async def test_a_lost_connection_is_an_error_for_every_consumer(bus: NatsBus) -> None:
    async with bus.events(Happened, consumer="a") as first, bus.events(Ended, consumer="b") as second:
        bus.give_up("the server will not come back")
        for inbox in (first, second):
            with pytest.raises(BusError, match="will not come back"):
                await take(inbox, 1)


# ---------------------------------------------------------------- telemetry


class Load(Telemetry):
    subject: ClassVar[str] = "engine.load"
    n: int


async def sent_messages(server: EmbeddedServer) -> int:
    """Number of messages that the server has sent to its clients."""
    async with aiohttp.ClientSession() as session, session.get(f"{server.monitoring_url}/varz") as answer:
        return int((await answer.json())["out_msgs"])


async def test_telemetry_is_sent_to_a_process_once_for_all_its_subscribers(
    bus: NatsBus, server: EmbeddedServer
) -> None:
    sender = await NatsBus.connect(server.url, "test", name="sender", token=server.token)

    async def deliver(inbox: Subscription, n: int) -> Delivery:
        async with asyncio.timeout(300):
            await sender.publish(Progress(n=n), stamp())
            return await anext(inbox)

    async with bus.telemetry(Progress) as first:
        async with bus.telemetry(Progress, Load) as second:
            before = await sent_messages(server)
            one = await deliver(first, 1)
            other = await anext(second)
            assert one.message is other.message, "decoded once"
            assert await sent_messages(server) - before == 1
            await sender.publish(Load(n=2), stamp())
            assert (await anext(second)).message == Load(n=2)
        assert (await deliver(first, 3)).message == Progress(n=3), "the other subscriber has left"
    async with bus.telemetry(Progress) as third:
        assert (await deliver(third, 4)).message == Progress(n=4), "those before had ended"
    assert bus._telemetry._subscriptions == {}
    await sender.close()


async def test_a_subscriber_that_is_slow_loses_the_oldest_telemetry_and_delays_no_other(
    bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("areal_bus.nats_telemetry.TELEMETRY_BACKLOG", 2)
    async with bus.telemetry(Progress) as slow, bus.telemetry(Progress) as quick, asyncio.timeout(300):
        for n in range(5):
            await bus.publish(Progress(n=n), stamp())
            assert (await anext(quick)).message == Progress(n=n)
        assert numbers(await take(slow, 2)) == [3, 4]
