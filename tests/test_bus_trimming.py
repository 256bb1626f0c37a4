"""A log whose beginning is trimmed: what stays, who is refused, what is recognised, and that a hole is still damage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.bus_cases import KINDS, Buses, Do, Happened, numbers, open_buses, stamp, take

from areal_bus import Bus
from areal_bus.claims import INLINE_LIMIT
from areal_bus.errors import CorruptMessage, EventsTrimmed, LogUnavailable
from areal_bus.nats import NatsBus
from areal_bus.server import EmbeddedServer


@pytest.fixture(params=["memory", "nats", "shared"])
async def buses(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Buses]:
    async with open_buses(request.param, tmp_path) as buses:
        yield buses


async def publish(bus: Bus, *ns: int) -> None:
    for n in ns:
        await bus.publish(Happened(n=n), stamp(f"happened-{n}"))


async def whole(bus: Bus, after: int = 0) -> list[tuple[int, int]]:
    return [(envelope.sequence, envelope.open(Happened).n) async for envelope in bus.log(after=after)]


async def test_events_keep_their_sequences_when_those_before_them_are_removed(buses: Buses) -> None:
    await publish(buses.here, *range(1, 11))
    await buses.here.trim(5)
    span = await buses.there.span()
    assert (span.first, span.last) == (5, 10)
    assert await whole(buses.there) == [(n, n) for n in range(5, 11)]
    assert await whole(buses.there, after=7) == [(8, 8), (9, 9), (10, 10)]
    assert [envelope.open(Happened).n for envelope in await buses.there.read([10, 5])] == [10, 5]
    await publish(buses.here, 11)
    assert (await whole(buses.there, after=10)) == [(11, 11)]


async def test_a_removed_event_is_refused_as_trimmed_and_one_that_never_was_as_missing(buses: Buses) -> None:
    await publish(buses.here, 1, 2, 3)
    await buses.here.trim(3)
    with pytest.raises(EventsTrimmed, match="begins at event 3"):
        await buses.there.read([3, 2])
    with pytest.raises(LogUnavailable, match="sequence 4 is not in the log") as missing:
        await buses.there.read([4])
    assert not isinstance(missing.value, EventsTrimmed)
    with pytest.raises(EventsTrimmed):
        await whole(buses.there, after=1)


async def test_a_fold_that_would_begin_before_the_log_does_is_refused_and_one_with_a_snapshot_continues(
    buses: Buses,
) -> None:
    await publish(buses.here, *range(1, 7))
    await buses.here.trim(4)
    with pytest.raises(EventsTrimmed, match=r"fold requires event 1 .* begins at event 4"):
        async with buses.there.events(Happened, consumer="fold"):
            pass
    async with buses.there.events(Happened, consumer="fold", after=3) as inbox:
        assert numbers(await take(inbox, 3)) == [4, 5, 6]
    async with buses.there.events(Happened, consumer="present", history="new") as inbox:
        await publish(buses.here, 7)
        assert numbers(await take(inbox, 1)) == [7]


async def test_what_lies_before_a_snapshot_counts_as_acknowledged_and_what_was_acknowledged_after_it_is_replayed(
    buses: Buses,
) -> None:
    await publish(buses.here, *range(1, 7))
    async with buses.there.events(Happened, consumer="fold") as inbox:
        await take(inbox, 5, acknowledge=True)
    async with buses.here.events(Happened, consumer="fold", after=3) as inbox:
        assert inbox.backlog == 3
        received = await take(inbox, 3)
        assert [(delivery.message.n, delivery.replayed) for delivery in received] == [(4, True), (5, True), (6, False)]  # type: ignore[attr-defined]
    async with buses.here.events(Happened, consumer="other", after=3) as inbox:
        assert [delivery.replayed for delivery in await take(inbox, 3)] == [False, False, False]


async def test_republished_messages_are_deduplicated_whatever_was_trimmed(buses: Buses) -> None:
    await publish(buses.here, *range(1, 7))
    await buses.here.trim(5)
    await publish(buses.there, 2, 6)
    assert (await buses.here.span()).last == 6


async def test_the_newest_event_stays_and_trimming_further_back_changes_nothing(buses: Buses) -> None:
    await publish(buses.here, 1, 2, 3)
    await buses.here.trim(99)
    assert await whole(buses.here) == [(3, 3)]
    await buses.here.trim(2)
    assert (await buses.here.span()).first == 3


async def test_a_reader_that_trimming_overtakes_gets_an_error(buses: Buses) -> None:
    await publish(buses.here, *range(1, 400))
    reading = buses.there.log()
    assert (await anext(reading)).sequence == 1
    await buses.here.trim(390)
    with pytest.raises(EventsTrimmed):
        async for _ in reading:
            pass


async def test_the_files_of_trimmed_bodies_go_and_those_of_others_and_of_work_stay(tmp_path: Path) -> None:
    async with open_buses("nats", tmp_path) as buses:
        blobs = tmp_path / "blobs"
        for n in (1, 2, 3):
            await buses.here.publish(Happened(n=n, load=bytes(INLINE_LIMIT + 1)), stamp())
        (blobs / "thing.do-1.msgpack").write_bytes(b"work in flight")
        assert len(list(blobs.iterdir())) == 4
        await buses.here.trim(3)
        assert sorted(path.name.partition("-")[0] for path in blobs.iterdir()) == ["thing.do", "thing.happened"]
        (left,) = await buses.there.read([3])
        assert left.open(Happened).n == 3


async def test_a_beginning_that_is_missing_and_was_not_trimmed_is_damage(tmp_path: Path) -> None:
    async with open_buses("nats", tmp_path) as buses:
        await publish(buses.here, *range(1, 7))
        assert isinstance(buses.here, NatsBus)
        streams = buses.here._streams
        await buses.here.trim(3)
        await streams.api(f"STREAM.PURGE.{streams.log}", {"seq": 5})
        with pytest.raises(CorruptMessage, match="event 3 is missing in the log of run test"):
            await whole(buses.there)
        with pytest.raises(CorruptMessage, match="begins at event 5"):
            await buses.there.span()


async def test_a_trimmed_log_survives_its_server_and_still_deduplicates(tmp_path: Path) -> None:
    for life in (1, 2):
        server = await EmbeddedServer.start(tmp_path)
        bus = await NatsBus.connect(server.url, "test", name="here", token=server.token, kinds=KINDS)
        if life == 1:
            await publish(bus, *range(1, 11))
            await bus.trim(6)
        else:
            assert (await bus.span()).first == 6
            await publish(bus, *range(7, 12))
            assert await whole(bus) == [(n, n) for n in range(6, 12)]
        await bus.close()
        await server.stop()


async def test_consumers_of_killed_readers_do_not_stay_on_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("areal_bus.nats_reader._INACTIVE_SECONDS", 1)
    monkeypatch.setattr("areal_bus.nats_reader._FETCH_SECONDS", 0.3)
    server = await EmbeddedServer.start(tmp_path)
    bus = await NatsBus.connect(server.url, "test", name="here", token=server.token, kinds=KINDS)
    await publish(bus, 1)

    async def consumers(stream: str) -> int:
        return int((await bus._streams.api(f"STREAM.INFO.{stream}", {}))["state"]["consumer_count"])

    for _ in range(30):
        killed = await NatsBus.connect(server.url, "test", name="killed", token=server.token, kinds=KINDS)
        inbox = killed.events(Happened, consumer="fold")
        await take(await inbox.__aenter__(), 1, acknowledge=True)
        await killed.work(Do).__aenter__()
        connection = killed._connection._client._transport._io_writer.transport
        await killed._connection._client._close(
            status=2, do_cbs=False
        )  # as if its process had been killed: nothing is sent to the server
        connection.abort()
        await asyncio.sleep(0)
    async with bus.events(Happened, consumer="alive") as inbox, asyncio.timeout(300):
        while await consumers(bus._streams.log) > 1:  # noqa: ASYNC110 - the server does not report when it forgets
            await asyncio.sleep(0.1)
        await publish(bus, 2)
        assert numbers(await take(inbox, 2)) == [1, 2]
    assert await consumers(bus._streams.queue) == 1
    positions = (await bus._streams.api("STREAM.INFO.KV_areal_test", {}))["state"]["messages"]
    assert positions <= 2, "one key for each name, however often its bearer died"
    await bus.close()
    await server.stop()


async def test_a_reader_whose_consumer_was_forgotten_meanwhile_continues_after_its_last_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("areal_bus.nats_reader._INACTIVE_SECONDS", 1)
    async with open_buses("nats", tmp_path) as buses:
        assert isinstance(buses.there, NatsBus)
        streams = buses.there._streams
        await asyncio.gather(*(publish(buses.here, n) for n in range(1, 301)))
        async with buses.there.events(Happened, consumer="slow") as inbox, asyncio.timeout(300):
            assert len(await take(inbox, 1)) == 1
            # The server forgets in silence
            while (await streams.api(f"STREAM.INFO.{streams.log}", {}))["state"]["consumer_count"]:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
            received = [(await anext(inbox)).envelope.sequence for _ in range(299)]
        assert received == list(range(2, 301))
