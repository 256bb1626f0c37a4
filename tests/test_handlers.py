"""Handlers: asynchronous or plain generators, or functions without messages, of one message type or of several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing
from typing import ClassVar

import pytest

from areal_actors.runtime.actor import Actor, Emits, on
from areal_bus import Event


class Started(Event):
    subject: ClassVar[str] = "thing.started"
    n: int


class Stopped(Event):
    subject: ClassVar[str] = "thing.stopped"
    n: int


class Counted(Event):
    subject: ClassVar[str] = "thing.counted"
    n: int


class Plain(Actor):
    def __init__(self):
        self.log = []

    @on
    def count(self, event: Started | Stopped) -> Iterator[Counted | Stopped]:
        self.log.append(event)
        try:
            yield from (Counted(n=event.n + more) for more in range(3))
        finally:
            self.log.append("closed")

    @on
    def counted(self, event: Counted) -> None:
        self.log.append(event)


class Asynchronous(Plain):
    @on
    async def count(self, event: Started | Stopped) -> Emits[Counted | Stopped]:
        for message in super().count(event):
            yield message

    @on
    async def counted(self, event: Counted) -> None:
        super().counted(event)


@pytest.mark.parametrize("kind", [Plain, Asynchronous])
async def test_a_handler_of_two_types_yields_its_messages(kind):
    actor = kind()
    for event in (Started(n=1), Stopped(n=5)):
        assert [message.n async for message in actor.receive(event, None)] == [event.n, event.n + 1, event.n + 2]
    assert actor.log == [Started(n=1), "closed", Stopped(n=5), "closed"]


@pytest.mark.parametrize("kind", [Plain, Asynchronous])
async def test_a_handler_without_messages_is_run(kind):
    actor = kind()
    assert [message async for message in actor.receive(Counted(n=1), None)] == []
    assert actor.log == [Counted(n=1)]


async def test_closing_ends_a_plain_handler():
    actor = Plain()
    async with aclosing(actor.receive(Started(n=1), None)) as messages:
        assert (await anext(messages)).n == 1
    assert actor.log[-1] == "closed"


async def test_a_plain_handler_does_not_start_before_its_first_message_is_taken():
    actor = Plain()
    await actor.receive(Counted(n=1), None).aclose()
    assert actor.log == []


@pytest.mark.parametrize("kind", [Plain, Asynchronous])
def test_the_signature_declares_what_is_received_and_emitted(kind):
    assert {received.__name__: handler.emits for received, handler in kind.handlers.items()} == {
        "Started": (Counted, Stopped),
        "Stopped": (Counted, Stopped),
        "Counted": (),
    }
