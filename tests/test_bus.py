"""One contract, kept by both buses: the one in memory and the one over a real nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.bus_cases import (
    Buses,
    Do,
    Double,
    Ended,
    Happened,
    HappenedNewer,
    Progress,
    doubling,
    no_delivery,
    numbers,
    open_buses,
    stamp,
    take,
)

from areal_bus.base import History
from areal_bus.errors import CorruptMessage, LogUnavailable


@pytest.fixture(params=["memory", "nats", "shared"])
async def buses(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Buses]:
    async with open_buses(request.param, tmp_path) as buses:
        yield buses


# ---------------------------------------------------------------- events


async def test_every_consumer_receives_every_event_in_the_order_of_the_log(buses: Buses) -> None:
    async with (
        buses.there.events(Happened, Ended, consumer="a") as one,
        buses.here.events(Ended, Happened, consumer="b") as two,
    ):
        for n in range(10):
            await buses.here.publish(Happened(n=n) if n % 3 else Ended(n=n), stamp())
        assert numbers(await take(one, 10)) == numbers(await take(two, 10)) == list(range(10))


async def test_a_consumer_receives_only_the_kinds_that_it_named(buses: Buses) -> None:
    async with buses.there.events(Ended, consumer="a") as ended:
        await buses.here.publish(Happened(n=1), stamp())
        await buses.here.publish(Ended(n=2), stamp())
        (delivery,) = await take(ended, 1)
        assert delivery.message == Ended(n=2)
        assert delivery.envelope.sequence == 2


@pytest.mark.parametrize(("history", "earlier"), [("all", 3), ("last", 2), ("new", 0)])
async def test_a_consumer_knows_how_many_of_its_events_were_published_before_it_subscribed(
    buses: Buses, history: History, earlier: int
) -> None:
    for event in (Happened(n=1), Ended(n=2), Happened(n=3), Do(n=4)):
        await buses.here.publish(event, stamp())
    async with (
        buses.there.events(Happened, Ended, consumer="a", history=history) as inbox,
        buses.there.events(Ended, consumer="b") as ended,
    ):
        assert (inbox.backlog, ended.backlog) == (earlier, 1)
        await buses.here.publish(Ended(n=5), stamp())
        assert numbers(await take(inbox, earlier + 1))[-1] == 5


async def test_publishing_an_event_returns_its_place_in_the_log(buses: Buses) -> None:
    assert [await buses.here.publish(Happened(n=n), stamp()) for n in range(3)] == [1, 2, 3]
    assert await buses.here.publish(Do(n=1), stamp()) == 0
    assert await buses.here.publish(Progress(n=1), stamp()) == 0


async def test_an_event_published_again_is_kept_once_and_keeps_its_place(buses: Buses) -> None:
    places = [await bus.publish(Happened(n=1), stamp("same")) for bus in (buses.here, buses.here, buses.there)]
    assert places == [1, 1, 1]
    assert await buses.here.publish(Happened(n=2), stamp()) == 2
    assert [envelope.open(Happened).n async for envelope in buses.here.log()] == [1, 2]


async def test_the_envelope_has_sender_time_and_cause(buses: Buses) -> None:
    async with buses.there.events(Happened, consumer="a") as inbox:
        await buses.here.publish(Happened(n=7), stamp("an-id"))
        envelope = (await take(inbox, 1))[0].envelope
    assert (envelope.id, envelope.sender, envelope.time, envelope.cause) == ("an-id", "tester", 1.5, "because")
    assert (envelope.run, envelope.subject, envelope.sequence) == ("test", "thing.happened", 1)
    assert envelope.open(Happened) == Happened(n=7)


async def test_events_published_at_once_keep_the_order_in_which_their_tasks_began(buses: Buses) -> None:
    async with asyncio.TaskGroup() as group:
        publishing = [
            group.create_task(buses.here.publish(Happened(n=n, load=bytes(n * 997)), stamp())) for n in range(300)
        ]
    assert [task.result() for task in publishing] == list(range(1, 301))
    assert [envelope.open(Happened).n async for envelope in buses.there.log()] == list(range(300))


async def test_a_consumer_that_comes_back_receives_acknowledged_events_as_replayed_and_the_rest_as_new(
    buses: Buses,
) -> None:
    for n in range(6):
        await buses.here.publish(Happened(n=n), stamp())
    async with buses.there.events(Happened, consumer="a") as inbox:
        first = await take(inbox, 4)
        assert not any(delivery.replayed for delivery in first)
        await first[0].acknowledge()
        await first[1].acknowledge()
    await buses.here.publish(Happened(n=6), stamp())
    async with buses.here.events(Happened, consumer="a") as inbox:
        again = await take(inbox, 7)
    assert numbers(again) == list(range(7))
    assert [delivery.replayed for delivery in again] == [True, True, False, False, False, False, False]


async def test_an_event_that_is_not_acknowledged_holds_the_position_of_its_consumer(buses: Buses) -> None:
    for n in range(4):
        await buses.here.publish(Happened(n=n), stamp())
    async with buses.there.events(Happened, consumer="a") as inbox:
        for delivery in [delivery for delivery in await take(inbox, 4) if delivery.message != Happened(n=1)]:
            await delivery.acknowledge()
    async with buses.there.events(Happened, consumer="a") as inbox:
        again = await take(inbox, 4)
        assert [delivery.replayed for delivery in again] == [True, False, False, False]
        for delivery in again:
            await delivery.acknowledge()
    async with buses.there.events(Happened, consumer="a") as inbox:
        assert all(delivery.replayed for delivery in await take(inbox, 4))


async def test_consumers_of_other_names_have_positions_of_their_own(buses: Buses) -> None:
    await buses.here.publish(Happened(n=1), stamp())
    async with buses.here.events(Happened, consumer="a") as inbox:
        await take(inbox, 1, acknowledge=True)
    async with buses.here.events(Happened, consumer="b") as inbox:
        assert not (await take(inbox, 1))[0].replayed


async def test_history_last_begins_with_the_last_event_of_each_kind(buses: Buses) -> None:
    for n in range(5):
        await buses.here.publish(Happened(n=n) if n % 2 else Ended(n=n), stamp())
    async with buses.there.events(Happened, Ended, consumer="a", history="last") as inbox:
        await buses.here.publish(Happened(n=5), stamp())
        assert numbers(await take(inbox, 3)) == [3, 4, 5]


async def test_history_new_receives_no_past_events(buses: Buses) -> None:
    await buses.here.publish(Happened(n=1), stamp())
    async with buses.there.events(Happened, consumer="a", history="new") as inbox:
        await buses.here.publish(Happened(n=2), stamp())
        assert numbers(await take(inbox, 1)) == [2]


async def test_no_event_published_after_entering_is_missed(buses: Buses) -> None:
    for n in range(20):
        async with buses.there.events(Happened, consumer=f"c{n}", history="new") as inbox:
            await buses.here.publish(Happened(n=n), stamp())
            assert numbers(await take(inbox, 1)) == [n]


async def test_a_newer_program_may_add_fields(buses: Buses) -> None:
    await buses.here.publish(HappenedNewer(n=3, mood="fine"), stamp())
    async with buses.there.events(Happened, consumer="a") as inbox:
        assert (await take(inbox, 1))[0].message == Happened(n=3)


async def test_a_damaged_event_is_a_named_error(buses: Buses) -> None:
    await buses.append_damaged(Happened(n=1))
    await buses.here.publish(Happened(n=2), stamp())
    async with buses.there.events(Happened, consumer="a") as inbox:
        with pytest.raises(CorruptMessage, match=r"thing\.happened from tester .*checksum"):
            await take(inbox, 1)
        assert numbers(await take(inbox, 1)) == [2]


async def test_an_event_of_another_shape_is_a_named_error(buses: Buses) -> None:
    class HappenedOtherwise(Ended):
        subject = "thing.happened"
        n: str  # type: ignore[assignment]

    await buses.here.publish(HappenedOtherwise(n="three"), stamp())  # type: ignore[arg-type]
    async with buses.there.events(Happened, consumer="a") as inbox:
        with pytest.raises(CorruptMessage, match="is not a Happened"):
            await take(inbox, 1)


async def test_a_large_event_arrives_whole(buses: Buses) -> None:
    load = bytes(range(256)) * 12_000
    await buses.here.publish(Happened(n=1, load=load), stamp())
    async with buses.there.events(Happened, consumer="a") as inbox:
        assert (await take(inbox, 1))[0].message == Happened(n=1, load=load)
    assert (await buses.there.read([1]))[0].open(Happened).load == load
    assert [len(envelope.body) > len(load) async for envelope in buses.there.log()] == [True]


# ---------------------------------------------------------------- the log and the bucket


async def test_the_log_is_read_in_order_from_any_place(buses: Buses) -> None:
    assert [envelope async for envelope in buses.there.log()] == []
    for n in range(5):
        await buses.here.publish(Happened(n=n) if n % 2 else Ended(n=n), stamp())
    assert [envelope.sequence async for envelope in buses.there.log()] == [1, 2, 3, 4, 5]
    assert [envelope.sequence async for envelope in buses.there.log(after=3)] == [4, 5]
    assert [envelope.sequence async for envelope in buses.there.log(after=5)] == []


async def test_following_the_log_never_ends(buses: Buses) -> None:
    await buses.here.publish(Happened(n=0), stamp())
    following = buses.there.log(follow=True)
    async with asyncio.timeout(300):
        assert (await anext(following)).sequence == 1
        waiting = asyncio.ensure_future(anext(following))
        await buses.here.publish(Ended(n=1), stamp())
        assert (await waiting).sequence == 2
    await following.aclose()  # type: ignore[attr-defined]


async def test_events_are_read_by_their_places_in_the_order_asked(buses: Buses) -> None:
    for n in range(100):
        await buses.here.publish(Happened(n=n), stamp())
    wanted = [90, 1, 100, *range(2, 80)]
    assert [(envelope.sequence, envelope.open(Happened).n) for envelope in await buses.there.read(wanted)] == [
        (w, w - 1) for w in wanted
    ]


@pytest.mark.parametrize("place", [0, 7])
async def test_reading_a_place_that_is_not_in_the_log_names_it(buses: Buses, place: int) -> None:
    await buses.here.publish(Happened(n=1), stamp())
    with pytest.raises(LogUnavailable, match=f"sequence {place} is not in the log"):
        await buses.there.read([1, place])


async def test_the_bucket_keeps_the_last_value_of_a_key(buses: Buses) -> None:
    assert await buses.here.get("weights.latest") is None
    await buses.here.put("weights.latest", b"one")
    await buses.there.put("weights.latest", b"two")
    await buses.there.put("empty", b"")
    assert await buses.here.get("weights.latest") == b"two"
    assert await buses.here.get("empty") == b""
    with pytest.raises(ValueError, match="bucket key"):
        await buses.here.put("no spaces", b"")
    with pytest.raises(ValueError, match="reserved for the bus"):
        await buses.here.put("_position.a", b"")


# ---------------------------------------------------------------- requests


# ---------------------------------------------------------------- telemetry and watching


async def test_telemetry_reaches_every_current_subscriber(buses: Buses) -> None:
    await buses.here.publish(Progress(n=0), stamp())
    await buses.here.put("sent", b"")  # when this is kept, what was published before it has reached the server, too
    async with buses.there.telemetry(Progress) as one, buses.here.telemetry(Progress) as two:
        for n in range(1, 4):
            await buses.here.publish(Progress(n=n), stamp())
        assert numbers(await take(one, 3)) == numbers(await take(two, 3)) == [1, 2, 3]


async def test_a_slow_listener_loses_the_oldest_telemetry(buses: Buses) -> None:
    async with buses.here.telemetry(Progress) as slow, buses.here.telemetry(Progress) as quick:
        for n in range(5000):
            await buses.here.publish(Progress(n=n), stamp())
            await take(quick, 1)
        received = numbers(await take(slow, 4096))
    assert received == list(range(5000 - 4096, 5000))


async def test_watching_shows_everything_but_replies(buses: Buses) -> None:
    async with doubling(buses.there):
        watching = buses.there.watch()
        first = asyncio.ensure_future(anext(watching))
        await asyncio.sleep(0.05)
        await buses.here.publish(Happened(n=1), stamp())
        await buses.here.publish(Do(n=2), stamp())
        await buses.here.publish(Progress(n=3), stamp())
        await buses.here.request(Double(n=4), stamp(), timeout=300)
        await buses.here.request(Double(n=5), stamp(), timeout=300, to="doubler-0")
        async with asyncio.timeout(300):
            seen = [await first, *[await anext(watching) for _ in range(4)]]
        assert [envelope.subject for envelope in seen] == [
            "thing.happened", "thing.do", "thing.progress", "number.double", "number.double",
        ]  # fmt: skip
        assert await no_delivery(watching, 0.05)


@pytest.mark.parametrize(
    ("pattern", "seen"),
    [
        ("thing.*", ["thing.happened", "thing.progress"]),
        ("number.>", ["number.double"]),
        ("*.double", ["number.double"]),
    ],
)
async def test_watching_is_narrowed_by_wildcards(buses: Buses, pattern: str, seen: list[str]) -> None:
    async with doubling(buses.there):
        watching = buses.there.watch(pattern)
        first = asyncio.ensure_future(anext(watching))
        await asyncio.sleep(0.05)
        await buses.here.publish(Happened(n=1), stamp())
        await buses.here.request(Double(n=2), stamp(), timeout=300, to="doubler-0")
        await buses.here.publish(Progress(n=3), stamp())
        async with asyncio.timeout(300):
            assert [(await first).subject, *[(await anext(watching)).subject for _ in seen[1:]]] == seen
        assert await no_delivery(watching, 0.05)
