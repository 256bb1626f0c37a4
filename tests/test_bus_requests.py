"""Requests and their replies, as both buses keep the contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.bus_cases import (
    Buses,
    Double,
    Doubled,
    doubling,
    open_buses,
    stamp,
    take,
)

from areal_bus.errors import NoReply, NoResponder


@pytest.fixture(params=["memory", "nats", "shared"])
async def buses(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Buses]:
    async with open_buses(request.param, tmp_path) as buses:
        yield buses


async def test_a_request_gets_its_answer(buses: Buses) -> None:
    async with doubling(buses.there):
        answers = await asyncio.gather(*(buses.here.request(Double(n=n), stamp(), timeout=300) for n in range(50)))
    assert [answer.n for answer in answers] == [2 * n for n in range(50)]


async def test_one_member_of_a_group_is_asked(buses: Buses) -> None:
    async with doubling(buses.there, "doubler-0") as one, doubling(buses.there, "doubler-1") as two:
        await asyncio.gather(*(buses.here.request(Double(n=n), stamp(), timeout=300) for n in range(40)))
        assert sorted(one + two) == list(range(40))
        assert one
        assert two


async def test_an_instance_can_be_asked_by_its_address(buses: Buses) -> None:
    async with doubling(buses.there, "doubler-0") as one, doubling(buses.there, "doubler-1") as two:
        for n in range(10):
            await buses.here.request(Double(n=n), stamp(), timeout=300, to="doubler-1")
    assert (one, two) == ([], list(range(10)))


@pytest.mark.parametrize("to", ["", "doubler-7"])
async def test_a_request_without_responder_fails_at_once(buses: Buses, to: str) -> None:
    async with asyncio.timeout(300):
        for _ in range(20):
            async with doubling(buses.there):
                pass
            with pytest.raises(NoResponder, match=r"no process serves number\.double"):
                await buses.here.request(Double(n=1), stamp(), timeout=300, to=to)


async def test_a_request_without_an_answer_fails_at_its_deadline_and_names_the_subject(buses: Buses) -> None:
    async with buses.there.requests(Double, group="deaf", address="deaf-0"):
        with pytest.raises(NoReply, match=r"number\.double: no reply within 0\.05 s"):
            await buses.here.request(Double(n=1), stamp(), timeout=0.05)


async def test_a_late_answer_is_ignored(buses: Buses) -> None:
    async with buses.there.requests(Double, group="slow", address="slow-0") as inbox:
        with pytest.raises(NoReply):
            await buses.here.request(Double(n=1), stamp(), timeout=0.05)
        await buses.there.reply((await take(inbox, 1))[0].reply_to, Doubled(n=2), stamp())
        asking = asyncio.create_task(buses.here.request(Double(n=5), stamp(), timeout=300))
        await buses.there.reply((await take(inbox, 1))[0].reply_to, Doubled(n=10), stamp())
        assert (await asking).n == 10


async def test_a_streamed_answer_arrives_part_by_part(buses: Buses) -> None:
    async with doubling(buses.there, parts=5):
        parts = [part.n async for part in buses.here.request_stream(Double(n=3), stamp(), timeout=300)]
    assert parts == [6, 12, 18, 24, 30]


async def test_a_streamed_answer_that_stops_fails_at_the_next_part(buses: Buses) -> None:
    async with buses.there.requests(Double, group="halting", address="halting-0") as inbox:
        parts = buses.here.request_stream(Double(n=1), stamp(), timeout=0.2)
        first = asyncio.ensure_future(anext(parts))
        await buses.there.reply((await take(inbox, 1))[0].reply_to, Doubled(n=2), stamp(), last=False)
        assert (await first).n == 2
        with pytest.raises(NoReply):
            await anext(parts)


async def test_a_large_question_arrives_whole(buses: Buses) -> None:
    async with doubling(buses.there):
        assert (await buses.here.request(Double(n=4, load=bytes(2_000_000)), stamp(), timeout=300)).n == 8
