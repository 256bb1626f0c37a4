"""A responder is notified when its asker has left; the same on both buses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.bus_cases import Buses, Double, Doubled, open_buses, stamp, take

from areal_bus.errors import NoReply


@pytest.fixture(params=["memory", "nats"])
async def buses(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Buses]:
    async with open_buses(request.param, tmp_path) as buses:
        yield buses


async def test_a_named_responder_is_notified_when_its_asker_leaves(buses: Buses) -> None:
    async with buses.there.requests(Double, group="halting", address="halting-0") as inbox:
        parts = buses.here.request_stream(Double(n=1), stamp(), timeout=300, to="halting-0")
        first = asyncio.ensure_future(anext(parts))
        (question,) = await take(inbox, 1)
        left = asyncio.Event()
        question.on_cancelled(left.set)
        await buses.there.reply(question.reply_to, Doubled(n=2), stamp(), last=False)
        assert (await first).n == 2
        assert not left.is_set()
        await parts.aclose()
        await asyncio.wait_for(left.wait(), 300)


async def test_a_question_whose_asker_left_before_it_was_taken_up_is_not_asked(buses: Buses) -> None:
    async with buses.there.requests(Double, group="busy", address="busy-0") as inbox:
        with pytest.raises(NoReply):
            await anext(buses.here.request_stream(Double(n=1), stamp(), timeout=0.05, to="busy-0"))
        await asyncio.sleep(0.05)
        asking = asyncio.create_task(buses.here.request(Double(n=5), stamp(), timeout=300, to="busy-0"))
        (question,) = await take(inbox, 1)
        assert question.message.n == 5
        await buses.there.reply(question.reply_to, Doubled(n=10), stamp())
        assert (await asking).n == 10


async def test_a_stream_read_to_its_end_is_not_abandoned(buses: Buses) -> None:
    async with buses.there.requests(Double, group="whole", address="whole-0") as inbox:
        asking = asyncio.create_task(buses.here.request(Double(n=5), stamp(), timeout=300, to="whole-0"))
        (question,) = await take(inbox, 1)
        left = asyncio.Event()
        question.on_cancelled(left.set)
        await buses.there.reply(question.reply_to, Doubled(n=10), stamp())
        await asking
        await asyncio.sleep(0.05)
        assert not left.is_set()
