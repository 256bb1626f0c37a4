"""What a handler can do besides yielding: ask, wait under a name, roll dice; and who hears what it says."""

from __future__ import annotations

import asyncio
import contextlib
from typing import ClassVar

import pytest
from runtime_house import Do, DoOther, Happened, House, Noted, Sum, Summer, WhatElse, WhatSum

from areal_actors.actor import Actor, Emits, Tick, Turn, on
from areal_actors.messages import ActorStarted, Heartbeat
from bus import Telemetry
from bus.errors import NoReply, NoResponder


@pytest.fixture
async def house():
    made = House()
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
    async def happened(self, event: Happened, turn: Turn) -> None:
        try:
            answer = await turn.ask(self.question(), timeout=1.0, retry_for_seconds=self.retry_for_seconds)
            self.answers.append(answer.n)
        except (NoResponder, NoReply, TypeError) as error:
            self.answers.append(type(error))

    @on
    async def do(self, work: Do, turn: Turn) -> None:
        self.answers += [part.n async for part in turn.stream(WhatSum(parts=3), timeout=1.0)]


async def test_a_question_that_was_not_declared_is_a_type_error_that_names_it(house):
    class Sloppy(Asker):
        @on
        async def happened(self, event: Happened, turn: Turn) -> None:
            with pytest.raises(TypeError, match="sloppy sends WhatElse without declaring it in `asks`"):
                await turn.ask(WhatElse(), timeout=1.0)
            self.answers.append("refused")

    actor = Sloppy()
    await house.serve(actor)
    await house.say(Happened(n=1))
    await house.until(lambda: actor.answers == ["refused"])


async def test_questions_are_answered_whole_or_in_parts(house):
    actor, summer = Asker(), Summer()
    await house.serve(actor)
    await house.serve(summer)
    await house.say(Do(n=1))
    await house.until(lambda: actor.answers == [0, 1, 0])
    summer.sum = 5
    await house.say(Happened(n=0))
    await house.until(lambda: actor.answers == [0, 1, 0, 5])


async def test_nobody_to_ask_is_known_at_once_and_with_patience_somebody_may_come(house):
    at_once, patient = Asker(), Asker(retry_for_seconds=2.0)
    await house.serve(at_once, "asker-0")
    await house.serve(patient, "asker-1")
    await house.say(Happened(n=3))
    await house.until(lambda: at_once.answers == [NoResponder])
    assert patient.answers == []
    await house.serve(Summer())
    await house.until(lambda: patient.answers in ([0], [3]))


class Slow(Actor):
    """Waits for something that has a name, and for an answer that does not come."""

    asks = (WhatSum,)
    concurrency = 8

    @on
    async def do(self, work: Do, turn: Turn) -> None:
        with turn.waiting("the kettle", 30.0):
            await asyncio.sleep(100)

    @on
    async def do_other(self, work: DoOther, turn: Turn) -> None:
        await turn.ask(WhatSum(), timeout=60.0, to="mute-0")

    def status(self):
        return {"mood": "calm"}


class Mute(Actor):
    @on
    async def what_sum(self, question: WhatSum) -> Emits[Sum]:
        await asyncio.sleep(100)
        yield Sum(n=0)


async def test_heartbeats_show_what_is_in_hand_and_every_wait_by_name_and_deadline(house):
    beats = []
    async with house.bus.telemetry(Heartbeat) as inbox:
        await house.serve(Mute())
        runtime = await house.serve(Slow(), now=lambda: 1000.0, heartbeat_seconds=0.01)
        await house.say(Do(n=1))
        await house.say(DoOther(n=1))
        await house.until(lambda: len(runtime.waits) == 2)
        async with asyncio.timeout(30):
            async for delivery in inbox:
                if delivery.message.actor == "slow-0" and len(delivery.message.waits) == 2:
                    beats.append(delivery.message)
                    break
    (beat,) = beats
    assert beat.handling == {"Do": 1, "DoOther": 1}
    assert {(wait.name, wait.since, wait.deadline) for wait in beat.waits} == {
        ("the kettle", 1000.0, 1030.0),
        ("WhatSum from mute-0", 1000.0, 1060.0),
    }
    assert beat.status == {"mood": "calm"}
    assert beat.peak_memory_bytes > 2**20
    await house.kill("slow-0")
    assert runtime.waits == {}
    assert runtime.handling.total() == 0


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


async def test_a_question_from_outside_is_handled_like_any_other(house):
    actor = Outside()
    await house.serve(actor)
    assert [part.n async for part in actor.submit(WhatSum(parts=3))] == [0, 1, 2]
    await house.until(lambda: actor.ended == ["whole", "ended"])


async def test_who_leaves_before_the_last_part_ends_the_handling_and_who_leaves_after_it_does_not(house):
    actor = Outside()
    runtime = await house.serve(actor)
    async with contextlib.aclosing(actor.submit(WhatSum(parts=9))) as parts:
        await anext(parts)
        await actor.held.wait()
    await house.until(lambda: actor.ended == ["ended"])
    assert runtime.handling.total() == 0
    async with contextlib.aclosing(actor.submit(WhatSum(parts=1))) as parts:
        assert (await anext(parts)).is_last()
    await house.until(lambda: actor.ended == ["ended", "whole", "ended"])
    assert not house.tasks["outside-0"].done()


class Ticking(Actor):
    tick_seconds = 0.005

    def __init__(self):
        self.ticks = []

    @on
    async def tick(self, _: Tick, turn: Turn) -> Emits[Noted]:
        self.ticks.append(turn.cause)
        yield Noted(n=len(self.ticks))


async def test_what_is_said_at_a_tick_of_one_life_is_not_taken_for_that_of_another(house):
    for _ in range(2):
        actor = Ticking()
        await house.serve(actor)
        await house.until(lambda actor=actor: len(actor.ticks) >= 2)
        await house.kill("ticking-0")
    assert [event.n for event in house.log()].count(1) == 2


async def test_an_actor_announces_itself_in_every_life(house):
    for _ in range(2):
        await house.serve(Summer())
        await house.kill("summer-0")
    assert [(event.actor, event.process) for event in house.log(ActorStarted)] == [("summer-0", "here")] * 2


class Dicing(Actor):
    def __init__(self):
        self.rolls = []

    @on
    async def happened(self, event: Happened, turn: Turn) -> None:
        self.rolls.append(turn.random.random())


async def test_randomness_follows_from_run_actor_and_message(house):
    one, same, other = Dicing(), Dicing(), Dicing()
    await house.serve(one, "dicing-0")
    await house.kill("dicing-0")
    await house.say(Happened(n=1))
    await house.say(Happened(n=1))
    await house.serve(one, "dicing-0")
    await house.serve(other, "dicing-1")
    await house.until(lambda: len(one.rolls) == len(other.rolls) == 2)
    await house.kill("dicing-0")
    await house.serve(same, "dicing-0")
    await house.until(lambda: len(same.rolls) == 2)
    assert same.rolls == one.rolls
    assert len({*one.rolls, *other.rolls}) == 4


class Said(Telemetry):
    subject: ClassVar[str] = "said.loudly"
    n: int


class Listener(Actor):
    def __init__(self):
        self.heard = []

    @on
    async def said(self, telemetry: Said) -> None:
        self.heard.append(telemetry.n)


async def test_telemetry_is_heard_from_now_on(house):
    await house.say(Said(n=1))
    actor = Listener()
    await house.serve(actor)
    await house.say(Said(n=2))
    await house.until(lambda: actor.heard == [2])


def test_a_more_special_actor_keeps_the_handlers_of_its_kind():
    class Special(Summer):
        @on
        async def do(self, work: Do) -> None:
            pass

    assert set(Special.handlers) == {Happened, WhatSum, Do}
    assert set(Summer.handlers) == {Happened, WhatSum}
