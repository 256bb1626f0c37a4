"""Serves one actor's mailbox: subscriptions from its handlers, back-pressure, tape, heartbeat, and the names of its waits.

Everything that is not the actor's own thought happens here, once: stamping with deterministic ids, acknowledging after
what was said is durable, renewing leases, timing.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from functools import cached_property
from random import Random
from typing import Any, Literal, TypeVar

import msgspec

from areal_actors.actor import Actor, Tick
from areal_actors.fold_keeper import FoldKeeper
from areal_actors.message_ids import HandlingIds, message_id
from areal_actors.messages import ActorStarted, Heartbeat, Wait
from areal_actors.named_wait import NamedWait
from areal_actors.snapshots import SnapshotStore
from areal_actors.work_items import renewed, take_slots
from bus.base import Bus, Delivery, Envelope, Hearing, Stamp, WorkQueue
from bus.errors import BusError, NoResponder
from bus.message import Event, FrozenMeta, Message, Reply, Request, Telemetry, Work
from bus.recorded import Tape, TapeEntry

R = TypeVar("R", bound=Reply)

Answer = Callable[[Reply, Stamp], Awaitable[None]]
"""Takes a part of the answer to a question to whoever asked."""

RETRY_SECONDS = 0.1
LONGEST_WAITS = 5
STOP_SECONDS = 30.0
"""For an actor to release what it owns."""


class Identity(msgspec.Struct, metaclass=FrozenMeta):
    """Which actor this is, of which run, in which process."""

    instance: str
    """`rollout_worker-0`; a fresh instance after a failure has the same name."""
    process: str
    seed: int = 0


class Runtime:
    """One actor at work. `serve` runs until cancelled; an exception out of it is the actor's failure."""

    def __init__(
        self,
        actor: Actor,
        bus: Bus,
        identity: Identity,
        *,
        now: Callable[[], float] = time.time,
        tape: Tape | None = None,
        heartbeat_seconds: float = 1.0,
        snapshots: SnapshotStore | None = None,
    ) -> None:
        self.actor, self.bus, self.identity = actor, bus, identity
        self.now, self.tape, self.heartbeat_seconds = now, tape, heartbeat_seconds
        self.waits: dict[object, Wait] = {}
        self.handling: Counter[str] = Counter()
        self._fold = FoldKeeper(actor, bus, snapshots if actor.history == "all" else None, identity.instance)
        self.ready = asyncio.Event()
        self.handled = False
        """A message that is no replay has been handled to its end."""
        self._past_known = asyncio.Event()
        """Every event that there was at the start has been handled."""
        self._serial = asyncio.Lock() if actor.concurrency == 1 and actor.serial else None
        self._life = ""
        """Tells what this instance says of its own accord from what one of the same name said before it failed."""
        self._submitted = 0
        self._tasks: asyncio.TaskGroup | None = None

    async def serve(self) -> None:
        """Subscribe, start the actor, and handle what comes until cancelled."""
        kinds = list(self.actor.handlers)
        self._life = message_id("life", self.identity.instance, self.now())
        try:
            async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                await self._fold.restore(self.now())
                await self.actor.start(self.submit)
                await self._subscribe(kinds, stack, tasks)
                tasks.create_task(self._beat())
                if self.actor.tick_seconds and Tick in self.actor.handlers:
                    tasks.create_task(self._tick())
                await self._announce()
                self.ready.set()
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self.actor.stop()

    async def _subscribe(self, kinds: Sequence[type[Message]], stack: AsyncExitStack, tasks: asyncio.TaskGroup) -> None:
        instance = self.identity.instance
        if events := [kind for kind in kinds if issubclass(kind, Event)]:
            inbox = self.bus.events(*self._fold.heard(events), consumer=instance, history=self.actor.history, after=self._fold.after)
            tasks.create_task(self._hear_events(await stack.enter_async_context(inbox)))
        else:
            self._past_known.set()
        for kind in kinds:
            if issubclass(kind, Work):
                tasks.create_task(self._take_work(await stack.enter_async_context(self.bus.work(kind))))
        if questions := [kind for kind in kinds if issubclass(kind, Request)]:
            asked = self.bus.requests(*questions, group=self.actor.kind(), address=instance)
            tasks.create_task(self._answer(await stack.enter_async_context(asked)))
        if telemetry := [kind for kind in kinds if issubclass(kind, Telemetry) and kind is not Tick]:
            tasks.create_task(self._hear_all(await stack.enter_async_context(self.bus.telemetry(*telemetry))))

    async def _announce(self) -> None:
        started = ActorStarted(actor=self.identity.instance, process=self.identity.process, pid=os.getpid())
        stamp = Stamp(id=message_id("started", self.identity.instance, self.now()), sender=self.identity.instance, time=self.now())
        await self.bus.publish(started, stamp)

    async def _hear_events(self, inbox: Hearing) -> None:
        for _ in range(inbox.earlier):
            await self._hear(await anext(inbox))
        self._past_known.set()
        await self._hear_all(inbox)

    async def _hear_all(self, inbox: Hearing) -> None:
        async for delivery in inbox:
            await self._hear(delivery)

    async def _hear(self, delivery: Delivery) -> None:
        folds = self.actor.history == "all"
        envelope = delivery.envelope if folds else _said_anew(delivery.envelope, self._life)
        async with self._turn_taking():
            if type(delivery.message) in self.actor.handlers:
                await self._handle(envelope, delivery.message, replayed=delivery.replayed and folds)
            self._fold.folded(delivery, self._tasks, self.now())
        if not delivery.replayed:
            await delivery.acknowledge()

    async def _take_work(self, queue: WorkQueue) -> None:
        """Work is done by those who know what happened before."""
        assert self._tasks is not None
        await self._past_known.wait()
        slots = asyncio.Semaphore(self.actor.concurrency)
        while True:
            free = await take_slots(slots)
            taken = await queue.take(free)
            for _ in range(free - len(taken)):
                slots.release()
            for delivery in taken:
                self._tasks.create_task(self._work(delivery, queue.lease_seconds, slots))

    async def _work(self, delivery: Delivery, lease_seconds: float, slots: asyncio.Semaphore) -> None:
        envelope = delivery.envelope
        if delivery.deliveries > 1:
            envelope = _said_anew(envelope, str(delivery.deliveries))
        try:
            async with renewed(delivery, lease_seconds):
                async with self._turn_taking():
                    await self._handle(envelope, delivery.message)
                await delivery.acknowledge()
        finally:
            slots.release()

    async def _answer(self, inbox: Hearing) -> None:
        assert self._tasks is not None
        slots = asyncio.Semaphore(self.actor.concurrency)
        async for delivery in inbox:
            await slots.acquire()
            replying = self._tasks.create_task(self._reply(delivery, slots))
            delivery.when_abandoned(replying.cancel)

    async def _reply(self, delivery: Delivery, slots: asyncio.Semaphore) -> None:
        async def answer(part: Reply, stamp: Stamp) -> None:
            await self.bus.reply(delivery.reply_to, part, stamp, last=part.is_last())

        try:
            async with self._turn_taking():
                await self._handle(delivery.envelope, delivery.message, answer=answer)
        finally:
            slots.release()

    @asynccontextmanager
    async def _turn_taking(self) -> AsyncIterator[None]:
        if self._serial is None:
            yield
            return
        async with self._serial:
            yield

    async def _handle(self, envelope: Envelope, message: Message, *, replayed: bool = False, answer: Answer | None = None) -> None:
        """Give a message to its handler and send what it says."""
        turn = LiveTurn(self, envelope, replayed=replayed)
        name = type(message).__name__
        self.handling[name] += 1
        if not replayed:
            self.note("heard", turn.cause, turn.now, envelope)
        try:
            async with aclosing(self.actor.receive(message, turn)) as saying:
                async for said in saying:
                    if not replayed:
                        await self._say(said, turn, answer)
            self.handled = self.handled or not (replayed or isinstance(message, Tick))
        finally:
            self.handling[name] -= 1

    async def _say(self, said: Message, turn: LiveTurn, answer: Answer | None) -> None:
        stamp = turn.stamp(said)
        if self.tape:
            self.note("said", turn.cause, stamp.time, Envelope.seal(said, stamp, self.bus.run))
        if isinstance(said, Reply):
            if answer is not None:
                await answer(said, stamp)
        elif isinstance(said, Event | Work | Telemetry):
            await self.bus.publish(said, stamp)

    def note(
        self,
        kind: Literal["heard", "said", "asked", "answered", "failed"],
        cause: str,
        time: float,
        envelope: Envelope | None = None,
        *,
        error: Exception | None = None,
    ) -> None:
        """Write an entry on the tape, if there is one."""
        if self.tape:
            kinds = {"error": type(error).__name__, "text": str(error)} if error else {}
            self.tape.write(TapeEntry(kind=kind, cause=cause, time=time, envelope=envelope, **kinds))

    def _heard(self, message: Message, stamp: Stamp) -> Envelope:
        """As if it came over the bus; only a tape needs its body."""
        if self.tape:
            return Envelope.seal(message, stamp, self.bus.run)
        subject, run = message.subject, self.bus.run
        return Envelope(subject=subject, id=stamp.id, sender=stamp.sender, time=stamp.time, run=run, checksum=0, body=b"")

    async def submit(self, request: Request[R]) -> AsyncGenerator[R, None]:
        """A question from outside the bus, handled like any other; the handling ends when the asker leaves before the last part.

        Raises:
            NoResponder: the handling ended first: the actor stops, or it has failed.
        """
        assert self._tasks is not None
        self._submitted += 1
        stamp = Stamp(id=message_id(self._life, "submitted", self._submitted), sender="outside", time=self.now())
        parts: asyncio.Queue[Any] = asyncio.Queue()

        async def answer(part: Reply, _: Stamp) -> None:
            parts.put_nowait(part)

        handling = self._tasks.create_task(self._handle(self._heard(request, stamp), request, answer=answer))
        handling.add_done_callback(lambda _: parts.put_nowait(None))
        over = False
        try:
            while not over:
                part: R | None = await parts.get()
                if part is None:
                    raise NoResponder(f"{request.subject}: {self.identity.instance} ended before it had answered")
                over = part.is_last()
                yield part
        finally:
            if not over:
                handling.cancel()

    async def _tick(self) -> None:
        count = 0
        while True:
            await asyncio.sleep(self.actor.tick_seconds)
            count += 1
            stamp = Stamp(id=f"{self._life}-tick-{count}", sender="clock", time=self.now())
            async with self._turn_taking():
                await self._handle(self._heard(Tick(), stamp), Tick())

    async def _beat(self) -> None:
        beats = 0
        while True:
            usage = resource.getrusage(resource.RUSAGE_SELF)
            beats += 1
            beat = Heartbeat(
                actor=self.identity.instance,
                process=self.identity.process,
                pid=os.getpid(),
                handling={name: count for name, count in self.handling.items() if count},
                waits=tuple(sorted(self.waits.values(), key=lambda wait: wait.since)[:LONGEST_WAITS]),
                status=self.actor.status(),
                cpu_seconds=usage.ru_utime + usage.ru_stime,
                peak_memory_bytes=usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
            )
            stamp = Stamp(id=f"{self.identity.instance}-{os.getpid()}-beat-{beats}", sender=self.identity.instance, time=self.now())
            await self.bus.publish(beat, stamp)
            await asyncio.sleep(self.heartbeat_seconds)


class LiveTurn:
    """The handling of one message, on a real bus."""

    def __init__(self, runtime: Runtime, envelope: Envelope, *, replayed: bool) -> None:
        self.runtime = runtime
        self.cause = envelope.id
        self.sequence = envelope.sequence
        self.replayed = replayed
        self.now = envelope.time if replayed else runtime.now()
        self._ids = HandlingIds(runtime.identity.instance, envelope.id)

    @cached_property
    def random(self) -> Random:
        """Seeded when somebody asks: most handlers never do."""
        return Random(message_id(self.runtime.identity.seed, self.runtime.identity.instance, self.cause))

    def stamp(self, said: Message) -> Stamp:
        """The stamp of what this handling says next."""
        return Stamp(id=self._ids.following(said), sender=self.runtime.identity.instance, time=self.runtime.now(), cause=self.cause)

    async def ask(self, request: Request[R], *, timeout: float, to: str = "", retry_for_seconds: float = 0.0) -> R:
        """Ask another actor; while nobody serves the question, ask again for `retry_for_seconds` seconds."""
        stamp = self._asking(request)
        try:
            with self.waiting(_awaited(request, to), timeout + retry_for_seconds):
                reply = await self._patiently(request, stamp, timeout, to, self.runtime.now() + retry_for_seconds)
        except BusError as error:
            self._failed(error)
            raise
        self._note("answered", reply, stamp)
        return reply

    async def stream(self, request: Request[R], *, timeout: float, to: str = "") -> AsyncGenerator[R, None]:
        """Ask for an answer in parts."""
        stamp = self._asking(request)
        try:
            with self.waiting(_awaited(request, to), timeout):
                async with aclosing(self.runtime.bus.request_stream(request, stamp, timeout=timeout, to=to)) as parts:
                    async for part in parts:
                        self._note("answered", part, stamp)
                        yield part
        except BusError as error:
            self._failed(error)
            raise

    def _asking(self, request: Message) -> Stamp:
        if type(request) not in self.runtime.actor.asks:
            raise TypeError(f"{self.runtime.actor.kind()} asks {type(request).__name__} without declaring it in `asks`")
        stamp = self.stamp(request)
        self._note("asked", request, stamp)
        return stamp

    def _failed(self, error: BusError) -> None:
        self.runtime.note("failed", self.cause, self.runtime.now(), error=error)

    def _note(self, kind: Literal["asked", "answered"], message: Message, stamp: Stamp) -> None:
        self.now = self.runtime.now()
        if self.runtime.tape:
            self.runtime.note(kind, self.cause, self.now, Envelope.seal(message, stamp, self.runtime.bus.run))

    async def _patiently(self, request: Request[R], stamp: Stamp, timeout: float, to: str, until: float) -> R:
        while True:
            try:
                return await self.runtime.bus.request(request, stamp, timeout=timeout, to=to)
            except NoResponder:
                if self.runtime.now() >= until:
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    async def read(self, sequences: Sequence[int]) -> list[Envelope]:
        """Events of the run's log at these positions."""
        envelopes = await self.runtime.bus.read(sequences)
        for envelope in envelopes:
            self.runtime.note("answered", self.cause, self.runtime.now(), envelope)
        return envelopes

    def waiting(self, name: str, seconds: float) -> NamedWait:
        """Show this wait in heartbeats until it is over."""
        return NamedWait(self.runtime.waits, self.runtime.now, name, seconds)


def _awaited(request: Message, to: str) -> str:
    return f"{type(request).__name__} from {to or 'whoever serves it'}"


def _said_anew(envelope: Envelope, again: str) -> Envelope:
    """The envelope under another id, so that what is said about it now is not taken for what was said before."""
    return msgspec.structs.replace(envelope, id=f"{envelope.id}~{again}")
