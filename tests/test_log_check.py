"""Damage to the server's store is found at once, by our own sequences and checksums, and named; what comes before it is
whole."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from support.bus_cases import KINDS, Do, Happened, stamp
from support.log_damage import GONE, HARMLESS, HOLES, SHORTER, Damage, blocks_of

from areal_bus.errors import LogDamaged, LogUnavailable
from areal_bus.log_check import FIRST_MARK, LogCheck, check_log, is_missing
from areal_bus.log_rewrite import (
    copy_log,
    copy_values,
    create_empty_queue,
    exchange,
    finish_exchange,
    messages_of,
    unfinished_store,
)
from areal_bus.nats import NatsBus
from areal_bus.recorded import export_log, read_log
from areal_bus.server import EmbeddedServer

EVENTS = 2500
LOG = "AREAL_test_LOG"
SEVERAL_BLOCKS = "x" * 12000
"""In the id, which stands whole in a header: 2,500 events fill more than three blocks."""


@asynccontextmanager
async def served(store: Path) -> AsyncIterator[NatsBus]:
    server = await EmbeddedServer.start(store)
    try:
        bus = await NatsBus.connect(server.url, "test", name="tester", token=server.token, retry_for_seconds=10)
        try:
            yield bus
        finally:
            await bus.close()
    finally:
        await server.stop()


async def made(store: Path) -> None:
    async with served(store) as bus:
        await bus.provision(KINDS)
        for start in range(0, EVENTS, 100):
            await asyncio.gather(
                *(bus.publish(Happened(n=n), stamp(f"{n}-{SEVERAL_BLOCKS}")) for n in range(start, start + 100))
            )
        await bus.publish(Do(n=1), stamp("work-1"))
        await bus.publish(Do(n=2), stamp("work-2"))
        await bus.put("key", b"kept")
        await bus.streams.put("_position.a", b"2500")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a log of several blocks."""
    store = tmp_path_factory.mktemp("sound") / "nats"
    asyncio.run(made(store))
    return store


def damaged(sound: Path, tmp_path: Path, damage: Damage) -> Path:
    store = tmp_path / "nats"
    shutil.copytree(sound, store)
    damage(blocks_of(store, LOG))
    return store


async def read_all(bus: NatsBus) -> list[int]:
    async with asyncio.timeout(300):
        return [envelope.sequence async for envelope in bus.log()]


async def checked(bus: NatsBus) -> LogCheck:
    places: list[int] = []
    async with asyncio.timeout(300):
        found = await check_log(bus.streams, lambda envelope: places.append(envelope.sequence))
    assert places == list(range(1, found.end + 1))
    return found


@pytest.mark.parametrize("name", HARMLESS)
async def test_a_lost_index_does_no_harm(sound: Path, tmp_path: Path, name: str) -> None:
    async with served(damaged(sound, tmp_path, HARMLESS[name])) as bus:
        assert await checked(bus) == LogCheck(first=1, end=EVENTS, last=EVENTS)


@pytest.mark.parametrize("name", HOLES)
async def test_a_hole_is_named_and_no_reader_waits_for_what_is_not_there(
    sound: Path, tmp_path: Path, name: str
) -> None:
    async with served(damaged(sound, tmp_path, HOLES[name])) as bus:
        found = await checked(bus)
        assert found.damage
        assert found.end < EVENTS == found.last
        with pytest.raises(LogDamaged, match=f"event {found.end + 1} is missing in the log of run test"):
            await read_all(bus)


@pytest.mark.parametrize("name", SHORTER)
async def test_a_log_that_is_only_shorter_is_read_to_its_end(sound: Path, tmp_path: Path, name: str) -> None:
    async with served(damaged(sound, tmp_path, SHORTER[name])) as bus:
        found = await checked(bus)
        assert found.end == found.last < EVENTS


@pytest.mark.parametrize("name", GONE)
async def test_a_missing_stream_is_named(sound: Path, tmp_path: Path, name: str) -> None:
    async with served(damaged(sound, tmp_path, GONE[name])) as bus:
        assert await is_missing(bus.streams, LOG)
        with pytest.raises(LogUnavailable, match="stream not found"):
            await checked(bus)


async def test_a_body_that_was_changed_is_named(tmp_path: Path) -> None:
    async with served(tmp_path / "nats") as bus:
        await bus.provision(KINDS)
        await bus.publish(Happened(n=1), stamp("1"))
        (sound,) = await bus.read([1])
        changed = msgspec.structs.replace(sound, body=sound.body[:-1] + b"\x07")
        await bus.streams.append("areal.test.thing.happened", msgspec.msgpack.encode(changed), "2")
        await bus.streams.append("areal.test.thing.happened", b"nothing", "3")
        assert (await checked(bus)).damage == "the checksum of event 2 does not match"


async def test_a_beginning_that_was_trimmed_is_no_damage_and_one_that_is_gone_is(tmp_path: Path) -> None:
    async with served(tmp_path / "nats") as bus:
        await bus.provision(KINDS)
        for n in range(6):
            await bus.publish(Happened(n=n), stamp())
        await bus.streams.api(f"STREAM.PURGE.{LOG}", {"seq": 3})
        assert "events 1 to 2 are missing" in (await check_log(bus.streams, lambda _: None)).damage
        await bus.streams.put(FIRST_MARK, b"3")
        assert await check_log(bus.streams, lambda _: None) == LogCheck(first=3, end=6, last=6)
        await bus.streams.put(FIRST_MARK, b"5")
        assert await check_log(bus.streams, lambda _: None) == LogCheck(first=5, end=6, last=6)


async def test_an_export_keeps_what_comes_before_the_damage(sound: Path, tmp_path: Path) -> None:
    async with served(damaged(sound, tmp_path, HOLES["flipped in the middle"])) as bus:
        end = (await checked(bus)).end
        with pytest.raises(
            LogDamaged, match=rf"event {end + 1} is missing.*the {end} events before it were written to .*export"
        ):
            await export_log(bus, tmp_path / "export")
    assert [envelope.sequence for envelope in read_log(tmp_path / "export")] == list(range(1, end + 1))


# ---------------------------------------------------------------- a new store with the good part


async def test_the_good_part_is_rewritten_under_the_same_sequences_with_values_and_no_work(
    sound: Path, tmp_path: Path
) -> None:
    store = damaged(sound, tmp_path, HOLES["torn tail"])
    async with served(store) as bus, served(unfinished_store(store)) as fresh:
        end = (await checked(bus)).end
        await copy_log(bus.streams, fresh.streams, 1, end)
        await create_empty_queue(bus.streams, fresh.streams)
        await copy_values(bus.streams, fresh.streams, {"_position.a": b"7"})
    aside = exchange(store)
    assert aside.name == "nats.damaged-1"
    async with served(store) as bus:
        assert await checked(bus) == LogCheck(first=1, end=end, last=end)
        assert (await bus.get("key"), await bus.position("a")) == (b"kept", 7)
        assert await bus.publish(Happened(n=0), stamp(f"0-{SEVERAL_BLOCKS}")) == 1, (
            "ids of the good part are recognised"
        )
        assert await bus.publish(Happened(n=9), stamp("new")) == end + 1
        assert [message async for message in messages_of(bus.streams, bus.streams.queue)] == []
        await bus.publish(Do(n=1), stamp("work-1"))
        async with bus.work(Do) as queue:
            assert [item.message for item in await queue.take(5)] == [Do(n=1)]


async def test_a_log_whose_beginning_was_trimmed_keeps_its_sequences(tmp_path: Path) -> None:
    store = tmp_path / "nats"
    async with served(store) as bus, served(unfinished_store(store)) as fresh:
        await bus.provision(KINDS)
        for n in range(8):
            await bus.publish(Happened(n=n), stamp())
        await bus.streams.put(FIRST_MARK, b"4")
        await bus.streams.api(f"STREAM.PURGE.{LOG}", {"seq": 4})
        await copy_log(bus.streams, fresh.streams, 4, 7)
        await copy_values(bus.streams, fresh.streams, {})
        assert await check_log(fresh.streams, lambda _: None) == LogCheck(first=4, end=7, last=7)


def test_an_interrupted_exchange_is_completed(tmp_path: Path) -> None:
    store = tmp_path / "nats"
    for name, content in (("nats", "old"), ("nats.rewritten", "new")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(content)
    finish_exchange(store)
    finish_exchange(store)
    assert (store / "file").read_text() == "new"
    assert (tmp_path / "nats.damaged-1" / "file").read_text() == "old"
    store.rename(tmp_path / "nats.rewritten")
    finish_exchange(store)
    assert (store / "file").read_text() == "new"
