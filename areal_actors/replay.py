"""Feeds a tape to a fresh actor and compares what it says with what the tape says.

Nothing outside the tape is needed: what the actor asked is answered from it, in the order in which the answers came,
so that even handlers that ran at the same time interleave as they did.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import Any, TypeVar

import msgspec

from areal_actors.actor import Actor, Tick
from areal_actors.message_ids import HandlingIds, message_id
from areal_actors.messages import KINDS
from bus import errors
from bus.base import Envelope
from bus.errors import BusError
from bus.message import FrozenMeta, Message, Reply, Request, Telemetry
from bus.recorded import TapeEntry

R = TypeVar("R", bound=Reply)

SETTLE_ROUNDS = 20
"""Turns of the event loop in which a handler goes as far as it can without being told more."""
ANSWER_SECONDS = 30.0
"""For a handler that works in a thread, or waits for another handler. One that has ended, or waits for the tape, is not waited for."""


class Difference(msgspec.Struct, metaclass=FrozenMeta):
    """Where an actor now answers differently."""

    entry: int
    """Number of the tape's entry, counted from 1."""
    taped: str
    now: str


Until = Callable[[float], Awaitable[None]]
"""Waits until a time of the tape's clock."""


async def at_once(_: float) -> None:
    """Goes through a tape as fast as the actor answers."""


async def replay(actor: Actor, tape: Iterable[TapeEntry], *, instance: str, seed: int, until: Until = at_once) -> list[Difference]:
    """Every difference between what the tape says and what this fresh actor, under the same name and seed, says now.

    Telemetry is not compared: it measures the machine. An actor whose engine answers by a clock is given `until`.
    """
    player = _Player(actor, instance, seed, until)
    try:
        differences = [found async for found in player.play(tape)]
    finally:
        await player.end()
    return differences


class _Player:
    def __init__(self, actor: Actor, instance: str, seed: int, until: Until) -> None:
        self.actor, self.instance, self.seed, self.until = actor, instance, seed, until
        self.kinds: dict[str, type[Message]] = {**{kind.subject: kind for kind in KINDS}, Tick.subject: Tick}
        self.turns: dict[str, TapeTurn] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def play(self, tape: Iterable[TapeEntry]) -> AsyncIterator[Difference]:
        """Act out each entry in order."""
        for number, entry in enumerate(tape, start=1):
            await self.until(entry.time)
            if entry.kind == "heard":
                self._hear(entry)
            elif entry.kind == "answered":
                self.turns[entry.cause].answer(entry)
            elif entry.kind == "failed":
                self.turns[entry.cause].fail(entry)
            elif (found := await self._compared(number, entry)) is not None:
                yield found
            for _ in range(SETTLE_ROUNDS):
                await asyncio.sleep(0)
        for turn in self.turns.values():
            for extra in turn.left():
                yield Difference(entry=0, taped="nothing more", now=extra.subject)

    def _hear(self, entry: TapeEntry) -> None:
        envelope = _of(entry)
        random = Random(message_id(self.seed, self.instance, envelope.id))
        turn = TapeTurn(self.actor, self.instance, envelope, entry.time, random, self.kinds)
        self.turns[entry.cause] = turn
        self.tasks.append(asyncio.create_task(turn.handle(envelope.open(self.kinds[envelope.subject]))))

    async def _compared(self, number: int, entry: TapeEntry) -> Difference | None:
        taped = _of(entry)
        if issubclass(self.kinds[taped.subject], Telemetry):
            return None
        said = await self.turns[entry.cause].next_emitted()
        if said is None:
            return Difference(entry=number, taped=_shown(taped), now="nothing")
        if (said.subject, said.id, said.body) == (taped.subject, taped.id, taped.body):
            return None
        return Difference(entry=number, taped=_shown(taped), now=_shown(said))

    async def end(self) -> None:
        """Whatever still waits for an answer that the tape does not have, as when the actor was killed, ends here."""
        for task in self.tasks:
            task.cancel()
        for task in self.tasks:
            with suppress(asyncio.CancelledError):
                await task
        await self.actor.stop()


class TapeTurn:
    """The handling of one message, with the tape for a world."""

    def __init__(
        self, actor: Actor, instance: str, envelope: Envelope, now: float, random: Random, kinds: dict[str, type[Message]]
    ) -> None:
        self.actor, self.now, self.random, self.kinds = actor, now, random, kinds
        self.cause, self.sequence, self.replayed = envelope.id, envelope.sequence, False
        self.instance = instance
        self.said: asyncio.Queue[Envelope] = asyncio.Queue()
        self._silent = False
        """It has ended, or was silent for as long as it is waited for."""
        self._reading = 0
        """Answers of the tape that the handler waits for."""
        self._changed = asyncio.Event()
        """Something was emitted, or `next_emitted` may have to give up."""
        self._answers: asyncio.Queue[TapeEntry] = asyncio.Queue()
        self._ids = HandlingIds(instance, envelope.id)

    async def handle(self, message: Message) -> None:
        """Run the handler and keep what it says."""
        try:
            async for said in self.actor.receive(message, self):
                self._say(said)
        finally:
            self._silent = True
            self._changed.set()

    async def next_emitted(self) -> Envelope | None:
        """What the handler emits next; None as soon as nothing can come before the tape goes on."""
        while self.said.empty():
            if self._silent or (self._reading and self._answers.empty()):
                return None
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), ANSWER_SECONDS)
            except TimeoutError:
                self._silent = True
        return self.said.get_nowait()

    def _say(self, message: Message) -> None:
        identity = self._ids.following(message)
        if isinstance(message, Telemetry):
            return
        body = msgspec.msgpack.encode(message)
        self.said.put_nowait(
            Envelope(subject=message.subject, id=identity, sender=self.instance, time=self.now, run="", checksum=0, body=body)
        )
        self._changed.set()

    def answer(self, entry: TapeEntry) -> None:
        """The tape's answer has come."""
        self._answers.put_nowait(entry)

    fail = answer

    def left(self) -> Iterator[Envelope]:
        """What was said and not compared."""
        while not self.said.empty():
            yield self.said.get_nowait()

    async def ask(self, request: Request[R], *, timeout: float, to: str = "", retry_for_seconds: float = 0.0) -> R:
        """Answered from the tape."""
        return await anext(self.stream(request, timeout=timeout + retry_for_seconds, to=to))

    async def stream(self, request: Request[R], *, timeout: float, to: str = "") -> AsyncGenerator[R, None]:  # noqa: ARG002 - the tape knows
        """Answered from the tape, part by part."""
        self._say(request)
        while True:
            envelope = await self._next()
            part: Any = envelope.open(self.kinds[envelope.subject])
            yield part
            if part.is_last():
                return

    async def read(self, sequences: Sequence[int]) -> list[Envelope]:
        """What the log held when the tape was made."""
        return [await self._next() for _ in sequences]

    async def _next(self) -> Envelope:
        self._reading += 1
        self._changed.set()
        try:
            entry = await self._answers.get()
        finally:
            self._reading -= 1
        self.now = entry.time
        if entry.kind == "failed":
            kind: type[BusError] = getattr(errors, entry.error, BusError)
            raise kind(entry.text)
        return _of(entry)

    @contextmanager
    def waiting(self, name: str, seconds: float) -> Iterator[None]:  # noqa: ARG002 - nobody watches
        """Nobody watches a replay."""
        yield


def _of(entry: TapeEntry) -> Envelope:
    assert entry.envelope is not None
    return entry.envelope


def _shown(envelope: Envelope) -> str:
    return f"{envelope.subject} {msgspec.json.encode(msgspec.msgpack.decode(envelope.body), enc_hook=bytes.hex).decode()[:500]}"
