"""Work queues, on both buses: one worker has an item, and another gets it when that one is gone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.bus_cases import LEASE, Buses, Do, numbers, open_buses, stamp

from areal_bus import Delivery, WorkQueue


@pytest.fixture(params=["memory", "nats"])
async def buses(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Buses]:
    async with open_buses(request.param, tmp_path) as buses:
        yield buses


async def soon(queue: WorkQueue, limit: int = 1, seconds: float = 30) -> list[Delivery]:
    async with asyncio.timeout(seconds):
        return await queue.take(limit)


async def is_empty(queue: WorkQueue, seconds: float = 0.15) -> bool:
    try:
        await soon(queue, seconds=seconds)
    except TimeoutError:
        return True
    return False


async def test_one_worker_takes_an_item(buses: Buses) -> None:
    async with buses.here.work(Do) as one, buses.there.work(Do) as two:
        done: Counter[int] = Counter()
        all_done = asyncio.Event()

        async def labour(queue: WorkQueue) -> None:
            while True:
                for item in await queue.take(2):
                    done.update(numbers([item]))
                    if done.total() >= 50:
                        all_done.set()
                    await item.acknowledge()

        labouring = [asyncio.create_task(labour(queue)) for queue in (one, two)]
        for n in range(50):
            await buses.here.publish(Do(n=n), stamp())
        async with asyncio.timeout(300):
            await all_done.wait()
        await asyncio.sleep(LEASE + 0.1)
        for task in labouring:
            task.cancel()
        assert done == Counter(range(50))


async def test_work_waits_for_its_first_worker(buses: Buses) -> None:
    for n in range(3):
        await buses.here.publish(Do(n=n), stamp())
    async with buses.there.work(Do) as queue:
        assert sorted(numbers(await soon(queue, limit=10))) == [0, 1, 2]


async def test_a_worker_takes_no_more_than_it_asked_for(buses: Buses) -> None:
    for n in range(5):
        await buses.here.publish(Do(n=n), stamp())
    async with buses.here.work(Do) as one, buses.there.work(Do) as two:
        assert len(await soon(one, limit=3)) == 3
        assert len(await soon(two, limit=3)) == 2


async def test_republished_work_is_done_once_even_after_it_was_done(buses: Buses) -> None:
    async with buses.there.work(Do) as queue:
        await buses.here.publish(Do(n=1), stamp("same"))
        await buses.here.publish(Do(n=1), stamp("same"))
        (item,) = await soon(queue, limit=5)
        await item.acknowledge()
        await buses.there.publish(Do(n=1), stamp("same"))
        assert await is_empty(queue)


async def test_work_is_not_in_the_log(buses: Buses) -> None:
    await buses.here.publish(Do(n=1), stamp())
    assert [envelope async for envelope in buses.here.log()] == []


async def test_acknowledged_work_is_gone(buses: Buses) -> None:
    await buses.here.publish(Do(n=1), stamp())
    async with buses.here.work(Do) as queue:
        await (await soon(queue))[0].acknowledge()
        assert await is_empty(queue, LEASE + 0.1)


async def test_work_of_a_silent_holder_is_redelivered_after_the_lease(buses: Buses) -> None:
    loop = asyncio.get_running_loop()
    await buses.here.publish(Do(n=1), stamp())
    async with buses.here.work(Do) as dead, buses.there.work(Do) as alive:
        assert dead.lease_seconds == LEASE
        (lost,) = await soon(dead)
        taken = loop.time()
        (found,) = await soon(alive)
        assert LEASE * 0.8 < loop.time() - taken < LEASE + 20
        assert (lost.deliveries, found.deliveries) == (1, 2)
        assert found.envelope.id == lost.envelope.id
        await found.acknowledge()
        assert await is_empty(alive, LEASE + 0.1)


async def test_a_lease_that_is_extended_holds(buses: Buses) -> None:
    loop = asyncio.get_running_loop()
    while True:  # a machine that stands still for a lease loses it: then it is no test
        await buses.here.publish(Do(n=1), stamp())
        async with buses.here.work(Do) as busy, buses.there.work(Do) as idle:
            (item,) = await soon(busy)
            waiting, longest = asyncio.create_task(idle.take(1)), 0.0
            for _ in range(6):
                began = loop.time()
                await asyncio.sleep(LEASE / 2)
                await item.extend()
                longest = max(longest, loop.time() - began)
            if longest < LEASE * 0.8:
                assert not waiting.done()
                await item.acknowledge()
                await asyncio.sleep(LEASE + 0.1)
                assert not waiting.done()
                waiting.cancel()
                return
            for taken in (item, *(await waiting if waiting.done() else ())):
                await taken.acknowledge()
            waiting.cancel()


async def test_a_lease_of_more_than_the_queues_time_holds_that_long_and_no_longer(buses: Buses) -> None:
    loop = asyncio.get_running_loop()
    await buses.here.publish(Do(n=1), stamp())
    async with buses.here.work(Do) as busy, buses.there.work(Do) as idle:
        (item,) = await soon(busy)
        began = loop.time()
        await item.extend(LEASE * 6)
        (again,) = await soon(idle, seconds=300)
        assert loop.time() - began >= LEASE * 5
        assert again.deliveries == 2
        await again.acknowledge()
    await buses.here.publish(Do(n=2), stamp())
    async with buses.here.work(Do) as busy, buses.there.work(Do) as idle:
        (item,) = await soon(busy)
        await item.extend(LEASE * 4)
        await item.acknowledge()
        assert await is_empty(idle, LEASE * 6), "an acknowledged item does not come again when its lease ends"
        await buses.here.publish(Do(n=3), stamp())
        (item,) = await soon(busy)
        await item.extend(300)
        await item.release()
        (again,) = await soon(idle, seconds=60)
        assert again.deliveries == item.deliveries + 1
        await again.acknowledge()


async def test_released_work_is_handed_out_again_at_once(buses: Buses) -> None:
    await buses.here.publish(Do(n=1), stamp())
    async with buses.here.work(Do) as unwilling, buses.there.work(Do) as willing:
        (item,) = await soon(unwilling)
        await item.release()
        (again,) = await soon(willing, seconds=LEASE * 0.8)
        assert again.deliveries == 2


async def test_a_worker_that_leaves_gives_back_what_it_holds(buses: Buses) -> None:
    for n in range(3):
        await buses.here.publish(Do(n=n), stamp())
    async with buses.there.work(Do) as staying:
        async with buses.here.work(Do) as leaving:
            first, *_ = await soon(leaving, limit=3)
            await first.acknowledge()
        got: list[Delivery] = []
        while len(got) < 2:
            got += await soon(staying, limit=3, seconds=LEASE * 0.8)
        assert sorted(numbers(got)) == [1, 2]
        assert {item.deliveries for item in got} == {2}


async def test_a_late_acknowledgement_still_counts(buses: Buses) -> None:
    await buses.here.publish(Do(n=1), stamp())
    async with buses.here.work(Do) as slow, buses.there.work(Do) as quick:
        (first,) = await soon(slow)
        (second,) = await soon(quick)
        await first.acknowledge()
        await asyncio.sleep(LEASE + 0.1)
        assert await is_empty(quick)
        await second.acknowledge()


async def test_an_item_that_comes_again_to_the_worker_that_is_still_at_it_is_not_handed_over_twice(
    buses: Buses,
) -> None:
    async with buses.here.work(Do) as slow:
        await buses.here.publish(Do(n=1), stamp())
        (item,) = await soon(slow)
        assert await is_empty(slow, LEASE * 4), (
            "the lease ended and the item came back, and it is not done a second time"
        )
        await item.extend()
        assert await is_empty(slow, LEASE * 2)
        await item.acknowledge()
    async with buses.there.work(Do) as other:
        assert await is_empty(other, LEASE * 3), (
            "the acknowledgement took the item out of the queue although it had been delivered again"
        )


async def test_an_item_that_came_again_is_given_back_by_its_newest_delivery(buses: Buses) -> None:
    async with buses.here.work(Do) as slow, buses.there.work(Do) as other:
        await buses.here.publish(Do(n=1), stamp())
        (item,) = await soon(slow)
        assert await is_empty(slow, LEASE * 2)
        await item.release()
        (again,) = await soon(other, seconds=30)
        assert again.deliveries > 1
        await again.acknowledge()
        await item.extend()
        assert await is_empty(other, LEASE * 2)


async def test_an_item_that_comes_again_takes_no_place_of_new_work(buses: Buses) -> None:
    async with buses.here.work(Do) as slow:
        for n in range(4):
            await buses.here.publish(Do(n=n), stamp())
        held = await soon(slow, limit=2)
        await asyncio.sleep(LEASE * 2)
        while len(held) < 4:
            held += await soon(slow, limit=8, seconds=30)
        assert sorted(numbers(held)) == [0, 1, 2, 3]
        for item in held:
            await item.acknowledge()
        assert await is_empty(slow, LEASE * 3)


async def test_a_cancelled_take_loses_nothing(buses: Buses) -> None:
    async with buses.here.work(Do) as queue:
        for n in range(20):
            taking = asyncio.create_task(queue.take(1))
            await asyncio.sleep(0.002 * (n % 3))
            await buses.there.publish(Do(n=n), stamp())
            taking.cancel()
            (outcome,) = await asyncio.gather(taking, return_exceptions=True)
            items = await soon(queue) if isinstance(outcome, BaseException) else outcome
            assert numbers(items) == [n]
            await items[0].acknowledge()


async def test_a_kind_that_waits_for_work_receives_it_at_once(buses: Buses) -> None:
    loop = asyncio.get_running_loop()
    async with buses.there.work(Do) as queue:
        delays = []
        for n in range(20):
            taking = asyncio.create_task(queue.take(4))
            await asyncio.sleep(0.005)
            published_at = loop.time()
            await buses.here.publish(Do(n=n), stamp())
            (item,) = await taking
            delays.append(loop.time() - published_at)
            await item.acknowledge()
    assert sorted(delays)[10] < 0.02
