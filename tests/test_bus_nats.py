"""Faults that only a bus over a real server can have: restarts, limits, lost connections, damage."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import nats
import pytest
from support.bus_cases import (
    KINDS,
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

from areal_bus.errors import ClaimLost, LogUnavailable, MessageTooLarge, ServerUnavailable
from areal_bus.nats import NatsBus
from areal_bus.server import EmbeddedServer
from areal_bus.server_version import check_server_version


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    server = await EmbeddedServer.start(tmp_path / "server")
    yield server
    await server.stop()


@pytest.fixture
async def bus(server: EmbeddedServer) -> AsyncIterator[NatsBus]:
    async with connected(server) as bus:
        yield bus


# ---------------------------------------------------------------- restarts


async def test_many_readers_of_large_events_on_one_connection_do_not_lose_it(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    for n in range(150):
        await bus.publish(Happened(n=n, load=os.urandom(200_000)), stamp())

    async def read_all(name: str) -> list[int]:
        async with bus.events(Happened, consumer=name) as inbox:
            return numbers(await take(inbox, 150))

    async with asyncio.TaskGroup() as group:
        readings = [group.create_task(read_all(f"reader-{n}")) for n in range(4)]
    assert [reading.result() for reading in readings] == [list(range(150))] * 4
    assert bus._connection._client.stats["reconnects"] == 0


async def test_listeners_that_leave_leave_nothing_on_the_server(server: EmbeddedServer, bus: NatsBus) -> None:
    await bus.publish(Happened(n=0), stamp())
    for n in range(5):
        async with bus.events(Happened, consumer=f"c{n}") as inbox:
            await take(inbox, 1)
        assert len([envelope async for envelope in bus.log()]) == 1
    await bus.barrier()
    async with await nats.connect(server.url, token=server.token) as client:
        await asyncio.sleep(0.1)
        assert (await client.jetstream().stream_info("AREAL_test_LOG")).state.consumer_count == 0


# ---------------------------------------------------------------- limits


async def test_without_a_blobs_folder_a_message_beyond_the_limit_is_refused_before_it_is_sent(bus: NatsBus) -> None:
    with pytest.raises(MessageTooLarge, match="blobs folder"):
        await bus.publish(Happened(n=1, load=os.urandom((1 << 20) - 250)), stamp("an-id-in-the-headers-" * 3))
    with pytest.raises(MessageTooLarge, match="blobs folder"):
        await bus.request(Double(n=1, load=os.urandom(1 << 20)), stamp(), timeout=1)
    assert await bus.publish(Happened(n=2), stamp()) == 1


async def test_a_large_body_lies_in_the_blobs_folder_and_a_question_leaves_none_behind(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    blobs = tmp_path / "blobs"
    async with connected(server, blobs) as bus:
        await bus.publish(Happened(n=1, load=bytes(300_000)), stamp("a/large id"))
        await bus.publish(Happened(n=1, load=bytes(300_000)), stamp("a/large id"))
        (file,) = blobs.iterdir()
        assert file.stat().st_size > 300_000
        async with bus.requests(Double, group="g", address="g-0") as inbox:
            asking = asyncio.create_task(bus.request(Double(n=1, load=bytes(300_000)), stamp(), timeout=5))
            await bus.reply((await take(inbox, 1))[0].reply_to, Doubled(n=2), stamp())
            await asking
        assert list(blobs.iterdir()) == [file]
        file.unlink()
        async with bus.events(Happened, consumer="a") as inbox:
            with pytest.raises(ClaimLost, match=r"thing\.happened-.*msgpack.*same blobs folder"):
                await take(inbox, 1)


async def test_a_kind_that_the_run_was_not_provisioned_for_is_a_named_error(server: EmbeddedServer) -> None:
    bus = await NatsBus.connect(
        server.url, "other", name="tester", token=server.token, kinds=[Happened], retry_for_seconds=0.3
    )
    with pytest.raises(LogUnavailable, match=r"thing\.ended .*no stream of run other accepts this subject"):
        await bus.publish(Ended(n=1), stamp())
    await bus.provision(KINDS)
    await bus.provision([Happened])
    assert await bus.publish(Ended(n=1), stamp()) == 1
    await bus.close()


async def test_a_log_has_more_readers_than_the_server_allows_by_default(bus: NatsBus) -> None:
    log, readers = bus.streams.log, 1001
    reader = {"stream_name": log, "config": {"ack_policy": "none", "mem_storage": True}}
    for _ in range(readers):
        await bus.streams.api(f"CONSUMER.CREATE.{log}", reader)
    assert (await bus.streams.api(f"STREAM.INFO.{log}", {}))["state"]["consumer_count"] == readers


async def test_a_full_store_is_a_named_error_and_loses_nothing(tmp_path: Path) -> None:
    server = await EmbeddedServer.start(tmp_path / "server", max_file_store=400_000)
    async with connected(server) as bus:

        async def fill() -> None:
            for n in range(100):
                await bus.publish(Happened(n=n, load=os.urandom(20_000)), stamp())

        with pytest.raises(LogUnavailable, match="free disk space"):
            await fill()
        kept = [envelope.open(Happened).n async for envelope in bus.log()]
        assert kept == list(range(len(kept)))
        assert len(kept) > 5
    await server.stop()


async def test_publishing_while_the_server_is_gone_is_an_error_after_all_retries(server: EmbeddedServer) -> None:
    async with connected(server, retry_for_seconds=0.5) as bus:
        await server.stop()
        with pytest.raises(LogUnavailable, match=r"not written within 0\.5 s: the server is unavailable"):
            await bus.publish(Happened(n=1), stamp())


# ---------------------------------------------------------------- connections


async def test_a_permanently_closed_connection_fails_pending_calls(server: EmbeddedServer) -> None:
    async with connected(server) as bus, bus.events(Happened, consumer="a") as inbox, bus.work(Do) as queue:
        async with bus.requests(Double, group="g", address="g-0"):
            waiting = [
                asyncio.create_task(bus.wait_lost()),
                asyncio.create_task(bus.request(Double(n=1), stamp(), timeout=300)),
                asyncio.create_task(take(inbox, 1)),
                asyncio.create_task(queue.take(1)),
            ]
            await asyncio.sleep(0.1)
            await bus._connection._client._process_err("'Unknown Protocol Operation'")
            async with asyncio.timeout(300):
                reason, *errors = await asyncio.gather(*waiting, return_exceptions=True)
        assert "closed permanently" in str(reason)
        assert "Unknown Protocol Operation" in str(reason)
        assert {type(error) for error in errors} == {ServerUnavailable}
        with pytest.raises(LogUnavailable, match="closed permanently"):
            await bus.publish(Happened(n=1), stamp())
        with pytest.raises(ServerUnavailable, match="closed permanently"):
            await bus.publish(Progress(n=1), stamp())


async def test_a_wrong_token_is_refused_by_name(server: EmbeddedServer) -> None:
    with pytest.raises(ServerUnavailable, match="refused the credentials of 'intruder'"):
        await NatsBus.connect(server.url, "test", name="intruder", token="wrong")


async def test_a_server_that_comes_back_with_another_token_is_permanently_lost(server: EmbeddedServer) -> None:
    async with connected(server) as bus:
        await server.stop()
        stranger = await EmbeddedServer.start(server.folder, ports=server.ports, token="another")
        async with asyncio.timeout(300):
            assert "closed permanently" in await bus.wait_lost()
        await stranger.stop()


async def test_telemetry_is_lost_and_not_an_error_while_the_server_is_away(server: EmbeddedServer) -> None:
    async with connected(server) as bus, bus.telemetry(Progress) as inbox:
        await server.stop()
        async with asyncio.timeout(300):
            for n in range(1000):
                await bus.publish(Progress(n=n), stamp())
                await asyncio.sleep(0.0005)
        again = await server.restart()
        async with asyncio.timeout(300):
            while await no_delivery(inbox, 0.05):
                await bus.publish(Progress(n=2000), stamp())
        await again.stop()


async def test_no_server_is_a_named_error() -> None:
    with pytest.raises(ServerUnavailable, match=r"no NATS server answers at nats://127\.0\.0\.1:9"):
        await NatsBus.connect("nats://127.0.0.1:9", "test", name="lonely", connect_timeout=0.5)


@pytest.mark.parametrize(("major", "minor"), [(2, 9), (2, 11), (1, 20)])
def test_an_old_server_is_refused(major: int, minor: int) -> None:
    with pytest.raises(ServerUnavailable, match=rf"has version {major}\.{minor}, but 2\.12 or newer"):
        check_server_version(major, minor)


def test_a_server_of_the_oldest_good_version_is_accepted() -> None:
    check_server_version(2, 12)
    check_server_version(3, 0)


async def test_a_run_name_that_cannot_be_part_of_a_subject_is_refused(server: EmbeddedServer) -> None:
    with pytest.raises(ValueError, match="run name 'My Run'"):
        await NatsBus.connect(server.url, "My Run", name="tester", token=server.token)


async def test_runs_on_one_server_are_isolated(server: EmbeddedServer, bus: NatsBus) -> None:
    other = await NatsBus.connect(server.url, "test2", name="tester", token=server.token, kinds=KINDS)
    await other.publish(Happened(n=1), stamp())
    await bus.publish(Happened(n=2), stamp())
    async with other.events(Happened, consumer="a") as inbox:
        assert numbers(await take(inbox, 1)) == [1]
        assert await no_delivery(inbox)
    await other.close()


async def test_a_strangers_bytes_do_not_end_a_server_of_requests(server: EmbeddedServer, bus: NatsBus) -> None:
    async with bus.requests(Double, group="g", address="g-0") as inbox:
        async with await nats.connect(server.url, token=server.token) as stranger:
            await stranger.publish("areal.test.number.double", b"hello?")
            await stranger.publish("areal.test.number.double", msgspec.msgpack.encode({"subject": "x"}))
        asking = asyncio.create_task(bus.request(Double(n=1), stamp(), timeout=5))
        assert numbers(await take(inbox, 1)) == [1]
        asking.cancel()


async def test_messages_published_before_a_barrier_are_at_the_server(server: EmbeddedServer, bus: NatsBus) -> None:
    received: list[bytes] = []

    async def on_message(message: nats.aio.msg.Msg) -> None:
        received.append(message.data)

    async with connected(server) as other:
        for n in range(50):
            await bus._connection.subscribe(f"barrier.{n}", on_message)
            await bus.barrier()
            await other._connection.publish(f"barrier.{n}", b"%d" % n)
            await other.barrier()
            await bus.barrier()
            await asyncio.sleep(0)
    assert len(received) == 50


async def test_a_flood_of_telemetry_does_not_delay_events(bus: NatsBus, server: EmbeddedServer) -> None:
    async with connected(server) as other, other.telemetry(Progress), other.events(Happened, consumer="a") as inbox:
        for n in range(20_000):
            await bus.publish(Progress(n=n), stamp("t"))
        await bus.publish(Happened(n=1), stamp())
        assert numbers(await take(inbox, 1)) == [1]


async def test_requests_to_an_instance_arrive_although_the_server_has_not_given_up_its_old_connection(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    async with (
        connected(server) as old,
        old.requests(Double, group="g", address="g-0"),
        bus.requests(Double, group="g", address="g-0") as inbox,
    ):
        for n in range(20):
            asking = asyncio.create_task(bus.request(Double(n=n), stamp(), timeout=60, to="g-0"))
            await bus.reply((await take(inbox, 1))[0].reply_to, Doubled(n=2 * n), stamp())
            assert (await asking).n == 2 * n
