"""How an actor is served: what it hears again, when its work is done, how much it has in hand, how it fails."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest
from runtime_house import Do, DoOther, Happened, House, Noted, Sum, Summer, WhatSum

from areal_actors.actor import Actor, Emits, Tick, Turn, on
from areal_actors.runtime import Identity, Runtime
from bus import MemoryBus, Stamp
from bus.errors import NoReply


@pytest.fixture
async def house():
    made = House()
    yield made
    for name in list(made.tasks):
        await made.kill(name)


async def test_a_restarted_actor_folds_its_events_again_and_says_nothing_twice(house):
    await house.serve(Summer())
    for n in (1, 2, 3):
        await house.say(Happened(n=n))
    await house.until(lambda: len(house.log()) == 3)
    await house.kill("summer-0")
    await house.say(Happened(n=4))
    fresh = Summer()
    await house.serve(fresh)
    await house.until(lambda: fresh.sum == 10)
    assert [(n, replayed) for n, replayed, _ in fresh.heard] == [(1, True), (2, True), (3, True), (4, False)]
    await house.until(lambda: len(house.log()) == 4)
    assert [event.n for event in house.log()] == [1, 3, 6, 10]
    sequences = [sequence for _, _, sequence in fresh.heard]
    assert [envelope.open(Happened).n for envelope in await house.bus.read(sequences)] == [1, 2, 3, 4]


async def test_work_waits_until_the_actor_knows_everything_that_had_happened(house):
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

    await house.say(Do(n=1))
    for n in (1, 2, 3):
        await house.say(Happened(n=n))
    actor = Knowing()
    await house.serve(actor)
    await house.until(lambda: actor.known_at_work)
    assert actor.known_at_work == [6]


async def test_a_death_between_saying_and_acknowledging_says_it_once(house):
    class Mortal(Summer):
        dies: ClassVar[bool] = True

        @on
        async def happened(self, event: Happened) -> Emits[Noted]:
            self.sum += event.n
            yield Noted(n=self.sum)
            if Mortal.dies:
                await asyncio.sleep(100)

    await house.serve(Mortal(), "summer-0")
    await house.say(Happened(n=5))
    await house.until(lambda: len(house.log()) == 1)
    await house.kill("summer-0")
    Mortal.dies = False
    await house.serve(Mortal(), "summer-0")
    await house.say(Happened(n=1))
    await house.until(lambda: len(house.log()) == 2)
    assert [event.n for event in house.log()] == [5, 6]


async def test_what_is_said_again_is_kept_once_whatever_telemetry_came_before_it(house):
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

    await house.serve(Talkative(), "talkative-0")
    await house.say(Happened(n=5))
    await house.until(lambda: len(house.log()) == 1)
    await house.kill("talkative-0")
    await house.serve(Talkative(), "talkative-0")
    await house.say(Happened(n=6))
    await house.until(lambda: len(house.log()) == 2)
    assert [event.n for event in house.log()] == [5, 6]


class Latest(Actor):
    """Acts on the last of what happened, in every life anew."""

    history = "last"

    @on
    async def happened(self, event: Happened, turn: Turn) -> Emits[Noted]:
        assert not turn.replayed
        yield Noted(n=event.n)


async def test_an_actor_that_hears_only_the_last_event_says_again_in_every_life_what_it_did(house):
    await house.say(Happened(n=1))
    await house.say(Happened(n=2))
    for life in (1, 2, 3):
        await house.serve(Latest())
        await house.until(lambda life=life: len(house.log()) == life)
        await house.kill("latest-0")
    assert [event.n for event in house.log()] == [2, 2, 2]


class Worker(Actor):
    """Does work when it is let."""

    def __init__(self, concurrency=1):
        self.concurrency = concurrency
        self.go_on = asyncio.Event()
        self.in_hand = 0
        self.most = 0
        self.begun = []

    @on
    async def do(self, work: Do, turn: Turn) -> Emits[Noted]:
        self.begun.append((work.n, turn.cause))
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


async def test_work_is_acknowledged_only_after_what_was_said_is_durable(house):
    worker = Worker()
    order = []
    publish = house.bus.publish

    async def slow_publish(message, stamp):
        if isinstance(message, Noted):
            await asyncio.sleep(0.02)
            order.append("durable")
        return await publish(message, stamp)

    house.bus.publish = slow_publish
    queue = house.bus._work_queue(Do.subject)
    finish = queue.finish
    queue.finish = lambda job: (order.append("acknowledged"), finish(job))
    await house.serve(worker)
    worker.go_on.set()
    await house.say(Do(n=1))
    await house.until(lambda: "acknowledged" in order)
    assert order == ["durable", "acknowledged"]


async def test_a_cancelled_worker_s_item_goes_to_another_and_its_answer_is_said_once(house):
    first, second = Worker(), Worker()
    second.go_on.set()
    await house.serve(first, "worker-0")
    await house.say(Do(n=7))
    await house.until(lambda: first.begun)
    await house.kill("worker-0")
    await house.serve(second, "worker-1")
    await house.until(house.log)
    await asyncio.sleep(0.3)
    assert [event.n for event in house.log()] == [7]
    assert len(second.begun) == 1


async def test_work_redelivered_to_the_same_name_is_another_cause_so_that_its_answers_are_not_swallowed(house):
    first, second = Worker(), Worker()
    await house.serve(first, "worker-0")
    await house.say(Do(n=7))
    await house.until(lambda: first.begun)
    await house.kill("worker-0")
    second.go_on.set()
    await house.serve(second, "worker-0")
    await house.until(house.log)
    assert first.begun[0][1] != second.begun[0][1]


async def test_long_work_keeps_its_lease(house):
    worker, idle = Worker(), Worker()
    await house.serve(worker, "worker-0")
    await house.say(Do(n=1))
    await house.until(lambda: worker.begun)
    await house.serve(idle, "worker-1")
    await asyncio.sleep(0.5)
    assert idle.begun == []
    worker.go_on.set()
    await house.until(house.log)


async def test_a_serial_actor_has_one_message_in_hand_whatever_comes(house):
    worker = Worker()
    await house.serve(worker)
    for n in range(3):
        await house.say(Do(n=n))
        await house.say(DoOther(n=n))
        await house.say(Happened(n=n))
    asking = asyncio.create_task(house.ask(WhatSum()))
    await asyncio.sleep(0.02)
    worker.go_on.set()
    assert (await asking).n == 0
    await house.until(lambda: len(house.log()) == 9)
    assert worker.most == 1


async def test_no_kind_of_message_waits_for_another_kind_to_come(house):
    worker = Worker()
    worker.go_on.set()
    await house.serve(worker)
    await house.say(DoOther(n=1))
    assert (await house.ask(WhatSum())).n == 0
    await house.say(Do(n=2))
    await house.until(lambda: len(house.log()) == 2)


async def test_one_kind_of_work_does_not_wait_for_another_where_the_actor_says_so(house):
    class Apart(Worker):
        serial = False

    worker = Apart()
    await house.serve(worker)
    for message in (Do(n=1), Do(n=2), DoOther(n=1), Happened(n=1)):
        await house.say(message)
    await house.until(lambda: len(house.log()) == 2)
    assert sorted(event.n for event in house.log()) == [-1, 101]
    assert worker.in_hand == 1, "of one kind one at a time"
    worker.go_on.set()
    await house.until(lambda: len(house.log()) == 4)


async def test_a_concurrent_actor_has_as_much_in_hand_as_it_says(house):
    worker = Worker(concurrency=3)
    await house.serve(worker)
    for n in range(5):
        await house.say(Do(n=n))
    await asyncio.sleep(0.02)
    assert worker.in_hand == 3
    worker.go_on.set()
    await house.until(lambda: len(house.log()) == 5)
    assert worker.most == 3


class Ordered(Actor):
    """Concurrent, and slow with events."""

    concurrency = 8

    def __init__(self):
        self.heard = []

    @on
    async def happened(self, event: Happened) -> None:
        await asyncio.sleep(0.005 if event.n == 0 else 0)
        self.heard.append(event.n)


async def test_even_a_concurrent_actor_hears_events_one_at_a_time_in_log_order(house):
    actor = Ordered()
    await house.serve(actor)
    for n in range(5):
        await house.say(Happened(n=n))
    await house.until(lambda: len(actor.heard) == 5)
    assert actor.heard == [0, 1, 2, 3, 4]


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
