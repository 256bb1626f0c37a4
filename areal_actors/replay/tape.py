"""Replays a tape to a new actor and compares its messages with those on the tape.

Replies to the actor's requests also come from the tape, in their original order, so that concurrent handlers interleave
as they did.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import Any, TypeVar

import msgspec

from areal_actors.messages import KINDS
from areal_actors.messages.fields import fields_of
from areal_actors.runtime.actor import Actor, Tick
from areal_actors.runtime.message_ids import HandlingIds, message_id
from areal_bus import errors
from areal_bus.base import Envelope, Stamp
from areal_bus.errors import BusError
from areal_bus.message import FrozenMeta, Message, Reply, Request, Telemetry
from areal_bus.recorded import RECEIVED, TapeEntry

R = TypeVar("R", bound=Reply)

SETTLE_ROUNDS = 20
"""Iterations of the event loop in which a handler runs until it needs further input."""
ANSWER_SECONDS = 30.0
"""Maximum wait for a handler that works in a thread or waits for another handler."""


class TapeDifference(msgspec.Struct, metaclass=FrozenMeta):
    """A difference between tape and replay."""

    entry: int
    """Number of the tape's entry, counted from 1; 0 for a message after the end of the tape."""
    taped: str
    now: str


Until = Callable[[float], Awaitable[None]]
"""Waits until a time on the tape's clock."""


async def at_once(_: float) -> None:
    """Do not wait: replay as fast as the actor handles messages."""


async def replay(
    actor: Actor, tape: Iterable[TapeEntry], *, instance: str, seed: int, until: Until = at_once
) -> list[TapeDifference]:
    """Returns the differences between a tape and the messages of a new actor with the same name and seed.

    Telemetry is not compared, since it measures the machine. An actor whose engine depends on a clock needs `until`.
    """
    player = _Player(actor, instance, seed, until)
    try:
        differences = [difference async for difference in player.play(tape)]
    finally:
        await player.end()
    return differences


class _Player:
    def __init__(self, actor: Actor, instance: str, seed: int, until: Until) -> None:
        self.actor, self.instance, self.seed, self.until = actor, instance, seed, until
        self.kinds: dict[str, type[Message]] = {**{kind.subject: kind for kind in KINDS}, Tick.subject: Tick}
        self.contexts: dict[str, TapeContext] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def play(self, tape: Iterable[TapeEntry]) -> AsyncIterator[TapeDifference]:
        """Replay each entry in order."""
        for number, entry in enumerate(tape, start=1):
            await self.until(entry.time)
            if entry.kind == RECEIVED:
                self._receive(entry)
            elif entry.kind in ("answered", "failed"):
                self.contexts[entry.cause].answers.put_nowait(entry)
            elif (difference := await self._compare(number, entry)) is not None:
                yield difference
            for _ in range(SETTLE_ROUNDS):
                await asyncio.sleep(0)
        for context in self.contexts.values():
            while not context.emitted.empty():
                yield TapeDifference(entry=0, taped="nothing more", now=context.emitted.get_nowait().subject)

    def _receive(self, entry: TapeEntry) -> None:
        envelope = _envelope_of(entry)
        random = Random(message_id(self.seed, self.instance, envelope.id))
        context = self.contexts[entry.cause] = TapeContext(
            self.actor, self.instance, envelope, entry.time, random, self.kinds
        )
        self.tasks.append(asyncio.create_task(context.handle(envelope.open(self.kinds[envelope.subject]))))

    async def _compare(self, number: int, entry: TapeEntry) -> TapeDifference | None:
        taped = _envelope_of(entry)
        if issubclass(self.kinds[taped.subject], Telemetry):
            return None
        emitted = await self.contexts[entry.cause].next_emitted()
        if emitted is None:
            return TapeDifference(entry=number, taped=_format(taped), now="nothing")
        if (emitted.subject, emitted.id) == (taped.subject, taped.id) and self._are_equal(emitted, taped):
            return None
        return TapeDifference(entry=number, taped=_format(taped), now=_format(emitted))

    def _are_equal(self, emitted: Envelope, taped: Envelope) -> bool:
        """True if two messages of one kind do the same, whatever format each is in."""
        kind = self.kinds[taped.subject]
        return emitted.body == taped.body or emitted.open(kind).is_equivalent(taped.open(kind))

    async def end(self) -> None:
        """Cancel handlers that wait for a reply which is not on the tape, as after a kill, and stop the actor."""
        for task in self.tasks:
            task.cancel()
        for task in self.tasks:
            with suppress(asyncio.CancelledError):
                await task
        await self.actor.stop()


class TapeContext:
    """Handling of one message, with replies from the tape."""

    def __init__(
        self,
        actor: Actor,
        instance: str,
        envelope: Envelope,
        now: float,
        random: Random,
        kinds: dict[str, type[Message]],
    ) -> None:
        self.actor, self.now, self.random, self.kinds = actor, now, random, kinds
        self.cause, self.sequence, self.sent, self.replayed = envelope.id, envelope.sequence, envelope.time, False
        self.instance = instance
        self.emitted: asyncio.Queue[Envelope] = asyncio.Queue()
        self._silent = False
        """True if the handler ended or timed out."""
        self._reading = 0
        """Number of entries of the tape that the handler waits for."""
        self._changed = asyncio.Event()
        """Set when a message was emitted, or `next_emitted` has to check if it can still wait."""
        self.answers: asyncio.Queue[TapeEntry] = asyncio.Queue()
        """Replies and failures from the tape that the handler has not received yet."""
        self._ids = HandlingIds(instance, envelope.id)

    async def handle(self, message: Message) -> None:
        """Run the handler and collect the messages that it emits."""
        try:
            async for emitted in self.actor.receive(message, self):
                self._emit(emitted)
        finally:
            self._silent = True
            self._changed.set()

    async def next_emitted(self) -> Envelope | None:
        """Returns the next message of the handler; None if it cannot emit one before the next entry of the tape."""
        while self.emitted.empty():
            if self._silent or (self._reading and self.answers.empty()):
                return None
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), ANSWER_SECONDS)
            except TimeoutError:
                self._silent = True
        return self.emitted.get_nowait()

    def _emit(self, message: Message) -> None:
        identity = self._ids.following(message)
        if isinstance(message, Telemetry):
            return
        self.emitted.put_nowait(Envelope.seal(message, Stamp(id=identity, sender=self.instance, time=self.now), ""))
        self._changed.set()

    async def ask(self, request: Request[R], *, timeout: float, to: str = "", retry_for_seconds: float = 0.0) -> R:
        """Return the reply from the tape."""
        return await anext(self.stream(request, timeout=timeout + retry_for_seconds, to=to))

    # The tape has the reply
    async def stream(self, request: Request[R], *, timeout: float, to: str = "") -> AsyncGenerator[R, None]:  # noqa: ARG002
        """Yield the parts of the reply from the tape."""
        self._emit(request)
        while True:
            envelope = await self._next()
            part: Any = envelope.open(self.kinds[envelope.subject])
            yield part
            if part.is_last():
                return

    async def read(self, sequences: Sequence[int]) -> list[Envelope]:
        """Return the events that were read when the tape was recorded."""
        return [await self._next() for _ in sequences]

    async def _next(self) -> Envelope:
        self._reading += 1
        self._changed.set()
        try:
            entry = await self.answers.get()
        finally:
            self._reading -= 1
        self.now = entry.time
        if entry.kind == "failed":
            kind: type[BusError] = getattr(errors, entry.error, BusError)
            raise kind(entry.text)
        return _envelope_of(entry)

    @contextmanager
    def waiting(self, name: str, seconds: float) -> Iterator[None]:  # noqa: ARG002 - a replay has no heartbeats
        """Do nothing: a replay has no heartbeats."""
        yield


def _envelope_of(entry: TapeEntry) -> Envelope:
    assert entry.envelope is not None
    return entry.envelope


def _format(envelope: Envelope) -> str:
    return f"{envelope.subject} {msgspec.json.encode(fields_of(envelope), enc_hook=bytes.hex).decode()[:500]}"
