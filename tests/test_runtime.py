"""The runtime of an actor: replay, acknowledgement of work, items in flight, failures."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest
from support.clock import jumping_time
from support.runtime_harness import Do, DoOther, Happened, Noted, Reported, RuntimeHarness, Sum, Summer, WhatSum

from areal_actors.runtime.actor import Actor, Context, Emits, Tick, on
from areal_actors.runtime.runtime import Identity, Runtime
from areal_bus import MemoryBus, Stamp
from areal_bus.errors import NoReply


@pytest.fixture(autouse=True)
async def time_jumps():
    with jumping_time():
        yield


@pytest.fixture
async def harness():
    made = RuntimeHarness()
    yield made
    for name in list(made.tasks):
        await made.kill(name)


async def test_a_restarted_actor_folds_its_events_again_and_emits_nothing_twice(harness):
    await harness.serve(Summer())
    for n in (1, 2, 3):
        await harness.publish(Happened(n=n))
    await harness.until(lambda: len(harness.log()) == 3)
    await harness.kill("summer-0")
    await harness.publish(Happened(n=4))
    fresh = Summer()
    await harness.serve(fresh)
    await harness.until(lambda: fresh.sum == 10)
    assert [(n, replayed) for n, replayed, _ in fresh.received] == [(1, True), (2, True), (3, True), (4, False)]
    await harness.until(lambda: len(harness.log()) == 4)
    assert [event.n for event in harness.log()] == [1, 3, 6, 10]
    sequences = [sequence for _, _, sequence in fresh.received]
    assert [envelope.open(Happened).n for envelope in await harness.bus.read(sequences)] == [1, 2, 3, 4]


async def test_work_waits_until_the_actor_knows_everything_that_had_happened(harness):
    class Knowing(Actor):
        def __init__(self):
            self.sum = 0
            self.known_at_work = []

        @on
        async def happened(self, event: Happened) -> None:
            await asyncio.sleep(0.01)
            self.sum += event.n

        @on
        async def do(self, work: Do) -> None:
            self.known_at_work.append(self.sum)

    await harness.publish(Do(n=1))
    for n in (1, 2, 3):
        await harness.publish(Happened(n=n))
    actor = Knowing()
    await harness.serve(actor)
    await harness.until(lambda: actor.known_at_work)
    assert actor.known_at_work == [6]


async def test_after_a_death_between_publish_and_acknowledge_the_message_is_published_once(harness):
    class Mortal(Summer):
        dies: ClassVar[bool] = True

        @on
        async def happened(self, event: Happened) -> Emits[Noted]:
            self.sum += event.n
            yield Noted(n=self.sum)
            if Mortal.dies:
                await asyncio.sleep(100)

    await harness.serve(Mortal(), "summer-0")
    await harness.publish(Happened(n=5))
    await harness.until(lambda: len(harness.log()) == 1)
    await harness.kill("summer-0")
    Mortal.dies = False
    await harness.serve(Mortal(), "summer-0")
    await harness.publish(Happened(n=1))
    await harness.until(lambda: len(harness.log()) == 2)
    assert [event.n for event in harness.log()] == [5, 6]


async def test_a_republished_message_is_kept_once_whatever_telemetry_came_before_it(harness):
    class Talkative(Actor):
        lives: ClassVar[int] = 0

        @on
        async def happened(self, event: Happened) -> Emits[Tick | Noted]:
            Talkative.lives += 1
            for _ in range(Talkative.lives):
                yield Tick()
            yield Noted(n=event.n)
            if Talkative.lives == 1:
                await asyncio.sleep(100)

    await harness.serve(Talkative(), "talkative-0")
    await harness.publish(Happened(n=5))
    await harness.until(lambda: len(harness.log()) == 1)
    await harness.kill("talkative-0")
    await harness.serve(Talkative(), "talkative-0")
    await harness.publish(Happened(n=6))
    await harness.until(lambda: len(harness.log()) == 2)
    assert [event.n for event in harness.log()] == [5, 6]


async def test_the_event_after_a_report_is_published_by_a_successor_that_has_nothing_to_report(harness):
    class Reporter(Actor):
        lives: ClassVar[int] = 0

        @on
        async def happened(self, event: Happened) -> Emits[Reported | Noted]:
            Reporter.lives += 1
            if Reporter.lives == 1:
                yield Reported(n=event.n)
                await asyncio.sleep(100)
            yield Noted(n=event.n)

    await harness.serve(Reporter(), "reporter-0")
    await harness.publish(Happened(n=5))
    await harness.until(lambda: harness.log(Reported))
    await harness.kill("reporter-0")
    await harness.serve(Reporter(), "reporter-0")
    await harness.until(harness.log)
    assert [event.n for event in harness.log()] == [5]


class Latest(Actor):
    """Acts on the last of what happened, in every life anew."""

    history = "last"

    @on
    async def happened(self, event: Happened, context: Context) -> Emits[Noted]:
        assert not context.replayed
        yield Noted(n=event.n)


async def test_an_actor_that_receives_only_the_last_event_emits_its_output_again_after_each_restart(harness):
    await harness.publish(Happened(n=1))
    await harness.publish(Happened(n=2))
    for life in (1, 2, 3):
        await harness.serve(Latest())
        await harness.until(lambda life=life: len(harness.log()) == life)
        await harness.kill("latest-0")
    assert [event.n for event in harness.log()] == [2, 2, 2]


class Worker(Actor):
    """Does work when it is let."""

    def __init__(self, concurrency=1):
        self.concurrency = concurrency
        self.go_on = asyncio.Event()
        self.in_hand = 0
        self.most = 0
        self.begun = []

    @on
    async def do(self, work: Do, context: Context) -> Emits[Noted]:
        self.begun.append((work.n, context.cause))
        self.in_hand += 1
        self.most = max(self.most, self.in_hand)
        await self.go_on.wait()
        self.in_hand -= 1
        yield Noted(n=work.n)

    @on
    async def do_other(self, work: DoOther) -> Emits[Noted]:
        self.most = max(self.most, self.in_hand + 1)
        yield Noted(n=-work.n)

    @on
    async def happened(self, event: Happened) -> Emits[Noted]:
        self.most = max(self.most, self.in_hand + 1)
        yield Noted(n=100 + event.n)

    @on
    async def what_sum(self, _: WhatSum) -> Emits[Sum]:
        self.most = max(self.most, self.in_hand + 1)
        yield Sum(n=self.in_hand)


async def test_work_is_acknowledged_only_after_its_output_is_durable(harness):
    worker = Worker()
    order = []
    publish = harness.bus.publish

    async def slow_publish(message, stamp):
        if isinstance(message, Noted):
            await asyncio.sleep(0.02)
            order.append("durable")
        return await publish(message, stamp)

    harness.bus.publish = slow_publish
    queue = harness.bus._work_queue(Do.subject)
    finish = queue.finish
    queue.finish = lambda job: (order.append("acknowledged"), finish(job))
    await harness.serve(worker)
    worker.go_on.set()
    await harness.publish(Do(n=1))
    await harness.until(lambda: "acknowledged" in order)
    assert order == ["durable", "acknowledged"]


async def test_a_cancelled_worker_s_item_goes_to_another_and_its_answer_is_published_once(harness):
    first, second = Worker(), Worker()
    second.go_on.set()
    await harness.serve(first, "worker-0")
    await harness.publish(Do(n=7))
    await harness.until(lambda: first.begun)
    await harness.kill("worker-0")
    await harness.serve(second, "worker-1")
    await harness.until(harness.log)
    await asyncio.sleep(0.3)
    assert [event.n for event in harness.log()] == [7]
    assert len(second.begun) == 1


async def test_work_redelivered_to_the_same_name_is_another_cause_so_that_its_answers_are_not_swallowed(harness):
    first, second = Worker(), Worker()
    await harness.serve(first, "worker-0")
    await harness.publish(Do(n=7))
    await harness.until(lambda: first.begun)
    await harness.kill("worker-0")
    second.go_on.set()
    await harness.serve(second, "worker-0")
    await harness.until(harness.log)
    assert first.begun[0][1] != second.begun[0][1]


async def test_long_work_keeps_its_lease(harness):
    worker, idle = Worker(), Worker()
    await harness.serve(worker, "worker-0")
    await harness.publish(Do(n=1))
    await harness.until(lambda: worker.begun)
    await harness.serve(idle, "worker-1")
    await asyncio.sleep(100 * harness.bus._lease_seconds)
    assert idle.begun == []
    worker.go_on.set()
    await harness.until(harness.log)


async def test_a_serial_actor_has_one_message_in_flight_whatever_comes(harness):
    worker = Worker()
    await harness.serve(worker)
    for n in range(3):
        await harness.publish(Do(n=n))
        await harness.publish(DoOther(n=n))
        await harness.publish(Happened(n=n))
    asking = asyncio.create_task(harness.ask(WhatSum()))
    await asyncio.sleep(0.02)
    worker.go_on.set()
    assert (await asking).n == 0
    await harness.until(lambda: len(harness.log()) == 9)
    assert worker.most == 1


async def test_no_kind_of_message_waits_for_another_kind_to_come(harness):
    worker = Worker()
    worker.go_on.set()
    await harness.serve(worker)
    await harness.publish(DoOther(n=1))
    assert (await harness.ask(WhatSum())).n == 0
    await harness.publish(Do(n=2))
    await harness.until(lambda: len(harness.log()) == 2)


async def test_one_kind_of_work_does_not_wait_for_another_where_the_actor_declares_it(harness):
    class Apart(Worker):
        serial = False

    worker = Apart()
    await harness.serve(worker)
    for message in (Do(n=1), Do(n=2), DoOther(n=1), Happened(n=1)):
        await harness.publish(message)
    await harness.until(lambda: len(harness.log()) == 2)
    assert sorted(event.n for event in harness.log()) == [-1, 101]
    assert worker.in_hand == 1, "of one kind one at a time"
    worker.go_on.set()
    await harness.until(lambda: len(harness.log()) == 4)


async def test_a_concurrent_actor_has_its_declared_number_of_items_in_flight(harness):
    worker = Worker(concurrency=3)
    await harness.serve(worker)
    for n in range(5):
        await harness.publish(Do(n=n))
    await asyncio.sleep(0.02)
    assert worker.in_hand == 3
    worker.go_on.set()
    await harness.until(lambda: len(harness.log()) == 5)
    assert worker.most == 3


class Ordered(Actor):
    """Concurrent, and slow with events."""

    concurrency = 8

    def __init__(self):
        self.received = []

    @on
    async def happened(self, event: Happened) -> None:
        await asyncio.sleep(0.005 if event.n == 0 else 0)
        self.received.append(event.n)


async def test_even_a_concurrent_actor_receives_events_one_at_a_time_in_log_order(harness):
    actor = Ordered()
    await harness.serve(actor)
    for n in range(5):
        await harness.publish(Happened(n=n))
    await harness.until(lambda: len(actor.received) == 5)
    assert actor.received == [0, 1, 2, 3, 4]


class Failing(Actor):
    """Fails, and counts how often it was stopped."""

    tick_seconds = 0.01

    def __init__(self, fails_at):
        self.fails_at = fails_at
        self.stops = 0

    async def start(self, submit):
        if self.fails_at == "start":
            raise ZeroDivisionError

    async def stop(self):
        self.stops += 1

    @on
    async def happened(self, event: Happened) -> None:
        if self.fails_at == "event":
            raise ZeroDivisionError

    @on
    async def do(self, work: Do) -> Emits[Noted]:
        yield Noted(n=1)
        if self.fails_at == "work":
            raise ZeroDivisionError

    @on
    async def what_sum(self, question: WhatSum) -> Emits[Sum]:
        if self.fails_at == "question":
            raise ZeroDivisionError
        yield Sum(n=0)

    @on
    async def tick(self, _: Tick) -> None:
        if self.fails_at == "tick":
            raise ZeroDivisionError


@pytest.mark.parametrize("place", ["start", "event", "work", "question", "tick"])
async def test_an_exception_in_a_handler_is_the_actor_s_failure_and_it_is_stopped_once(place):
    bus = MemoryBus()
    actor = Failing(place)
    runtime = Runtime(actor, bus, Identity(instance="failing-0", process="here"))
    serving = asyncio.create_task(runtime.serve())
    if place in {"event", "work", "question"}:
        await runtime.ready.wait()
        message = Happened(n=1) if place == "event" else Do(n=1)
        if place == "question":
            with pytest.raises(NoReply):
                await bus.request(WhatSum(), Stamp(id="1", sender="test", time=0.0), timeout=0.05)
        else:
            await bus.publish(message, Stamp(id="1", sender="test", time=0.0))
    with pytest.raises(ExceptionGroup) as caught:
        await serving
    assert caught.group_contains(ZeroDivisionError)
    assert actor.stops == 1
