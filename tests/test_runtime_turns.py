"""Abilities of a handler besides yielding: ask, wait under a name, draw random numbers; and delivery of its output."""

from __future__ import annotations

import asyncio
import contextlib
from typing import ClassVar

import pytest
from support.runtime_harness import Do, DoOther, Happened, Noted, RuntimeHarness, Sum, Summer, WhatElse, WhatSum

from areal_actors.messages import ActorStarted, Heartbeat
from areal_actors.runtime.actor import Actor, Context, Emits, Tick, on
from areal_bus import Telemetry
from areal_bus.errors import NoReply, NoResponder


@pytest.fixture
async def harness():
    made = RuntimeHarness()
    yield made
    for name in list(made.tasks):
        await made.kill(name)


class Asker(Actor):
    """Asks when something happens."""

    asks = (WhatSum,)
    concurrency = 4

    def __init__(self, question=WhatSum, retry_for_seconds=0.0):
        self.question, self.retry_for_seconds = question, retry_for_seconds
        self.answers = []

    @on
    async def happened(self, event: Happened, context: Context) -> None:
        try:
            answer = await context.ask(self.question(), timeout=1.0, retry_for_seconds=self.retry_for_seconds)
            self.answers.append(answer.n)
        except (NoResponder, NoReply, TypeError) as error:
            self.answers.append(type(error))

    @on
    async def do(self, work: Do, context: Context) -> None:
        self.answers += [part.n async for part in context.stream(WhatSum(parts=3), timeout=1.0)]


async def test_a_question_that_was_not_declared_is_a_type_error_that_names_it(harness):
    class Sloppy(Asker):
        @on
        async def happened(self, event: Happened, context: Context) -> None:
            with pytest.raises(TypeError, match="sloppy sends WhatElse without declaring it in `asks`"):
                await context.ask(WhatElse(), timeout=1.0)
            self.answers.append("refused")

    actor = Sloppy()
    await harness.serve(actor)
    await harness.publish(Happened(n=1))
    await harness.until(lambda: actor.answers == ["refused"])


async def test_questions_are_answered_whole_or_in_parts(harness):
    actor, summer = Asker(), Summer()
    await harness.serve(actor)
    await harness.serve(summer)
    await harness.publish(Do(n=1))
    await harness.until(lambda: actor.answers == [0, 1, 0])
    summer.sum = 5
    await harness.publish(Happened(n=0))
    await harness.until(lambda: actor.answers == [0, 1, 0, 5])


async def test_a_missing_responder_is_an_error_at_once_and_with_retries_one_may_come(harness):
    at_once, patient = Asker(), Asker(retry_for_seconds=2.0)
    await harness.serve(at_once, "asker-0")
    await harness.serve(patient, "asker-1")
    await harness.publish(Happened(n=3))
    await harness.until(lambda: at_once.answers == [NoResponder])
    assert patient.answers == []
    await harness.serve(Summer())
    await harness.until(lambda: patient.answers in ([0], [3]))


class Slow(Actor):
    """Waits for something that has a name, and for an answer that does not come."""

    asks = (WhatSum,)
    concurrency = 8

    @on
    async def do(self, work: Do, context: Context) -> None:
        with context.waiting("the kettle", 30.0):
            await asyncio.sleep(100)

    @on
    async def do_other(self, work: DoOther, context: Context) -> None:
        await context.ask(WhatSum(), timeout=300, to="mute-0")

    def status(self):
        return {"mood": "calm"}


class Mute(Actor):
    @on
    async def what_sum(self, question: WhatSum) -> Emits[Sum]:
        await asyncio.sleep(100)
        yield Sum(n=0)


async def test_heartbeats_show_what_is_in_flight_and_every_wait_by_name_and_deadline(harness):
    beats = []
    async with harness.bus.telemetry(Heartbeat) as inbox:
        await harness.serve(Mute())
        runtime = await harness.serve(Slow(), now=lambda: 1000.0, heartbeat_seconds=0.01)
        await harness.publish(Do(n=1))
        await harness.publish(DoOther(n=1))
        await harness.until(lambda: len(runtime.waits) == 2)
        async with asyncio.timeout(300):
            async for delivery in inbox:
                if delivery.message.actor == "slow-0" and len(delivery.message.waits) == 2:
                    beats.append(delivery.message)
                    break
    (beat,) = beats
    assert beat.handling == {"Do": 1, "DoOther": 1}
    assert {(wait.name, wait.since, wait.deadline) for wait in beat.waits} == {
        ("the kettle", 1000.0, 1030.0),
        ("WhatSum from mute-0", 1000.0, 1300.0),
    }
    assert beat.status == {"mood": "calm"}
    assert beat.peak_memory_bytes > 2**20
    await harness.kill("slow-0")
    assert runtime.waits == {}
    assert runtime.handling.total() == 0


async def collect(parts):
    """All parts of a reply, asked for by one task."""
    return [part async for part in parts]


class Outside(Actor):
    """Answers questions from outside the bus, as a gateway asks them."""

    def __init__(self):
        self.submit = None
        self.held, self.ended = asyncio.Event(), []

    async def start(self, submit):
        self.submit = submit

    @on
    async def what_sum(self, question: WhatSum) -> Emits[Sum]:
        try:
            for part in range(question.parts):
                yield Sum(n=part, last=part + 1 == question.parts)
                if question.parts == 9:
                    self.held.set()
                    await asyncio.sleep(100)
            self.ended.append("whole")
        finally:
            self.ended.append("ended")


async def test_a_question_from_outside_is_handled_like_any_other(harness):
    actor = Outside()
    await harness.serve(actor)
    assert [part.n async for part in actor.submit(WhatSum(parts=3))] == [0, 1, 2]
    await harness.until(lambda: actor.ended == ["whole", "ended"])


async def test_who_leaves_before_the_last_part_ends_the_handling_and_who_leaves_after_it_does_not(harness):
    actor = Outside()
    runtime = await harness.serve(actor)
    async with contextlib.aclosing(actor.submit(WhatSum(parts=9))) as parts:
        await anext(parts)
    assert actor.ended == ["ended"]
    assert runtime.handling.total() == 0
    waiting = asyncio.create_task(collect(actor.submit(WhatSum(parts=9))))
    await actor.held.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert actor.ended == ["ended", "ended"]
    assert runtime.handling.total() == 0
    actor.ended.clear()
    async with contextlib.aclosing(actor.submit(WhatSum(parts=1))) as parts:
        assert (await anext(parts)).is_last()
    assert actor.ended == ["whole", "ended"], "the last part comes when all is done"
    assert not harness.tasks["outside-0"].done()


async def test_a_wait_ends_with_the_actor_that_stops(harness):
    actor = Outside()
    await harness.serve(actor)
    waiting = asyncio.create_task(collect(actor.submit(WhatSum(parts=9))))
    between = actor.submit(WhatSum(parts=3))
    await anext(between)
    await actor.held.wait()
    await harness.kill("outside-0")
    with pytest.raises(NoResponder, match="outside-0 ended before it replied"):
        await waiting
    with pytest.raises(NoResponder, match="outside-0 ended before it replied"):
        await anext(between)
    assert actor.ended.count("ended") == 2


async def test_a_handler_that_fails_is_the_failure_of_its_actor(harness):
    class Failing(Outside):
        @on
        async def what_sum(self, question: WhatSum) -> Emits[Sum]:
            yield Sum(n=0, last=False)
            raise ZeroDivisionError("a fault of the handler")

    actor = Failing()
    await harness.serve(actor)
    with pytest.raises(NoResponder, match="failing-0 ended before it replied"):
        await collect(actor.submit(WhatSum()))
    await harness.until(harness.tasks["failing-0"].done)
    (failure,) = harness.tasks.pop("failing-0").exception().exceptions
    assert isinstance(failure, ZeroDivisionError)


async def test_a_question_that_comes_after_the_actor_has_stopped_is_refused_at_once(harness):
    actor = Outside()
    await harness.serve(actor)
    await harness.kill("outside-0")
    with pytest.raises(NoResponder, match="outside-0 ended before it replied"):
        await collect(actor.submit(WhatSum(parts=9)))
    assert actor.ended == []


async def test_of_two_handlers_that_fail_one_after_the_other_both_callers_are_refused(harness):
    class Failing(Outside):
        @on
        async def what_sum(self, question: WhatSum) -> Emits[Sum]:
            await self.held.wait()
            raise ZeroDivisionError("a fault of the handler")
            yield Sum(n=0)

    actor = Failing()
    await harness.serve(actor)
    asking = [asyncio.create_task(collect(actor.submit(WhatSum()))) for _ in range(2)]
    await asyncio.sleep(0)
    actor.held.set()
    refused = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(error) for error in refused] == [NoResponder, NoResponder]
    await harness.until(harness.tasks["failing-0"].done)
    harness.tasks.pop("failing-0").exception()


class Ticking(Actor):
    tick_seconds = 0.005

    def __init__(self):
        self.ticks = []

    @on
    async def tick(self, _: Tick, context: Context) -> Emits[Noted]:
        self.ticks.append(context.cause)
        yield Noted(n=len(self.ticks))


async def test_output_of_a_tick_is_not_deduplicated_over_restarts(harness):
    for _ in range(2):
        actor = Ticking()
        await harness.serve(actor)
        await harness.until(lambda actor=actor: len(actor.ticks) >= 2)
        await harness.kill("ticking-0")
    assert [event.n for event in harness.log()].count(1) == 2


async def test_an_actor_announces_itself_in_every_life(harness):
    for _ in range(2):
        await harness.serve(Summer())
        await harness.kill("summer-0")
    assert [(event.actor, event.process) for event in harness.log(ActorStarted)] == [("summer-0", "here")] * 2


class Dicing(Actor):
    def __init__(self):
        self.rolls = []

    @on
    async def happened(self, event: Happened, context: Context) -> None:
        self.rolls.append(context.random.random())


async def test_randomness_follows_from_run_actor_and_message(harness):
    one, same, other = Dicing(), Dicing(), Dicing()
    await harness.serve(one, "dicing-0")
    await harness.kill("dicing-0")
    await harness.publish(Happened(n=1))
    await harness.publish(Happened(n=1))
    await harness.serve(one, "dicing-0")
    await harness.serve(other, "dicing-1")
    await harness.until(lambda: len(one.rolls) == len(other.rolls) == 2)
    await harness.kill("dicing-0")
    await harness.serve(same, "dicing-0")
    await harness.until(lambda: len(same.rolls) == 2)
    assert same.rolls == one.rolls
    assert len({*one.rolls, *other.rolls}) == 4


class Reported(Telemetry):
    subject: ClassVar[str] = "said.loudly"
    n: int


class Listener(Actor):
    def __init__(self):
        self.received = []

    @on
    async def reported(self, telemetry: Reported) -> None:
        self.received.append(telemetry.n)


async def test_telemetry_is_received_from_now_on(harness):
    await harness.publish(Reported(n=1))
    actor = Listener()
    await harness.serve(actor)
    await harness.publish(Reported(n=2))
    await harness.until(lambda: actor.received == [2])


def test_a_more_special_actor_keeps_the_handlers_of_its_kind():
    class Special(Summer):
        @on
        async def do(self, work: Do) -> None:
            pass

    assert set(Special.handlers) == {Happened, WhatSum, Do}
    assert set(Summer.handlers) == {Happened, WhatSum}
