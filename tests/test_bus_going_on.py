"""After a pause or a disturbance every message is received once, and every publication is delivered once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from nats.aio.msg import Msg
from support.bus_cases import KINDS, Do, Happened, stamp, take

from areal_bus.nats import NatsBus
from areal_bus.nats_reader import NatsLogReader
from areal_bus.server import EmbeddedServer


async def test_a_disturbed_reader_begins_again_once_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await EmbeddedServer.start(tmp_path / "store")
    bus = await NatsBus.connect(server.url, "test", name="reader", token=server.token, kinds=KINDS)
    await bus.publish(Happened(n=1), stamp())
    reader = NatsLogReader(bus._streams, ["areal.test.thing.happened"], "reader")
    ended: asyncio.Queue[tuple[str, bool]] = asyncio.Queue()
    on_fetch_ended = reader._on_fetch_ended

    async def observed(message: Msg, code: str) -> None:
        await on_fetch_ended(message, code)
        ended.put_nowait((message.subject, reader._must_restart.is_set()))

    monkeypatch.setattr(reader, "_on_fetch_ended", observed)
    await reader.open()
    assert (await reader.next()).open(Happened).n == 1
    for disturbances in (1, 2):
        reader._must_restart.set()
        address, disturbed = await asyncio.wait_for(ended.get(), 300)
        assert address == f"{reader._address}.{disturbances}"
        assert not disturbed, "the end of its own earlier consumer is no disturbance"
        assert reader._generation == 1 + disturbances
    await bus.publish(Happened(n=2), stamp())
    assert (await asyncio.wait_for(reader.next(), 300)).open(Happened).n == 2
    assert reader._generation == 3
    await reader.close()
    await bus.close()
    await server.stop()


async def test_a_reader_keeps_its_consumer_over_many_fetches(tmp_path: Path) -> None:
    server = await EmbeddedServer.start(tmp_path / "store")
    bus = await NatsBus.connect(server.url, "test", name="reader", token=server.token, kinds=KINDS)
    reader = NatsLogReader(bus._streams, ["areal.test.thing.happened"], "reader")
    await reader.open()
    created = await bus.streams.api(f"CONSUMER.NAMES.{bus.streams.log}", {})
    for n in range(300):
        await bus.publish(Happened(n=n), stamp())
        assert (await asyncio.wait_for(reader.next(), 300)).open(Happened).n == n
    assert await bus.streams.api(f"CONSUMER.NAMES.{bus.streams.log}", {}) == created
    await reader.close()
    await bus.close()
    await server.stop()


async def test_after_a_pause_republished_messages_are_kept_once_if_the_server_was_notified(tmp_path: Path) -> None:
    server = await EmbeddedServer.start(tmp_path / "store")
    bus = await NatsBus.connect(server.url, "test", name="first", token=server.token)
    await bus.provision(KINDS, duplicate_seconds=0.2)
    assert [event async for event in bus.log()] == []
    for message in (Happened(n=1), Do(n=2)):
        await bus.publish(message, stamp("same"))
    await asyncio.sleep(0.5)
    await bus.set_dedup_window(60.0)
    assert [event.open(Happened) async for event in bus.log()] == [Happened(n=1)]
    await bus.close()
    again = await server.restart()
    bus = await NatsBus.connect(again.url, "test", name="second", token=again.token)
    assert await bus.publish(Happened(n=1), stamp("same")) == 1
    await bus.publish(Do(n=2), stamp("same"))
    async with bus.work(Do) as queue:
        (taken,) = await asyncio.wait_for(queue.take(5), 300)
        assert taken.deliveries == 1
    assert await bus.publish(Happened(n=1), stamp("another")) == 2
    assert await bus.position("listener") == 0
    async with bus.events(Happened, consumer="listener") as inbox:
        await take(inbox, 2, acknowledge=True)
    assert await bus.position("listener") == 2
    await bus.close()
    await again.stop()
