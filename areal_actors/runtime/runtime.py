"""Runs one actor: subscriptions from its handlers, back-pressure, tape, heartbeat, and named waits.

Everything that actors have in common is here: deterministic message ids, acknowledgement after emitted messages are
durable, lease renewal, timing.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import Any, TypeVar, cast

import msgspec

from areal_actors.core.snapshots import Snapshots
from areal_actors.messages import ActorStarted, Heartbeat, Wait
from areal_actors.runtime.actor import Actor, Tick
from areal_actors.runtime.fold_keeper import FoldKeeper
from areal_actors.runtime.heartbeats import HeartbeatPace
from areal_actors.runtime.live_context import LiveContext
from areal_actors.runtime.message_ids import message_id, with_new_id
from areal_actors.runtime.pauses import OwnPauses
from areal_actors.runtime.process_usage import process_usage
from areal_actors.runtime.submissions import Submissions, fail_with
from areal_actors.runtime.tape_recorder import TapeRecorder
from areal_actors.runtime.work_items import SentWork, WorkTasks, take_slots
from areal_bus.base import Bus, Delivery, Envelope, Stamp, Subscription, WorkQueue
from areal_bus.message import Event, FrozenMeta, Message, Reply, Request, Telemetry, Work
from areal_bus.recorded import EMITTED, RECEIVED, Tape
from areal_bus.shared_times import seconds_to_next

R = TypeVar("R", bound=Reply)
SendReply = Callable[[Reply, Stamp], Awaitable[None]]
"""Sends a part of the reply to the caller."""

LONGEST_WAITS = 5
STOP_SECONDS = 30.0
"""Maximum duration of an actor's `stop`."""
PUBLISHED = (Event, Work, Telemetry)


class Identity(msgspec.Struct, metaclass=FrozenMeta):
    """Identity of an actor."""

    instance: str
    """Name, such as `rollout_worker-0`; the new instance after a failure has the same name."""
    process: str
    seed: int = 0


class Runtime:
    """Runtime of one actor. `serve` runs until cancelled; an exception from it is the actor's failure."""

    def __init__(
        self,
        actor: Actor,
        bus: Bus,
        identity: Identity,
        *,
        now: Callable[[], float] = time.time,
        tape: Tape | None = None,
        heartbeat_seconds: float = 1.0,
        quiet_seconds: float = 0.0,
        snapshots: Snapshots | None = None,
    ) -> None:
        """Create it.

        `heartbeat_seconds` is the interval between two heartbeats, `quiet_seconds` that between two of an actor about
        which there is nothing new; 0: the same.
        """
        self.actor, self.bus, self.identity = actor, bus, identity
        self.instance, self.seed = identity.instance, identity.seed
        self.now, self.tape, self.heartbeat_seconds = now, tape, heartbeat_seconds
        self.quiet_seconds = quiet_seconds or heartbeat_seconds
        self.recorder = TapeRecorder(tape, bus.run)
        self.waits: dict[object, Wait] = {}
        self.handling: Counter[str] = Counter()
        self._fold = FoldKeeper(actor, bus, snapshots if actor.history == "all" else None, identity.instance)
        self.ready = asyncio.Event()
        self.handled = False
        """True once a message that is not a replay was handled."""
        self._caught_up = asyncio.Event()
        """Set once all events published before the start have been handled."""
        self._serial = asyncio.Lock() if actor.concurrency == 1 and actor.serial else None
        self._incarnation = ""
        """Id that distinguishes this instance's messages from those of earlier instances of the same name."""
        self._submitted = 0
        self._submissions = Submissions(identity.instance, self._fail)
        self.pauses = OwnPauses()
        self._tasks: asyncio.TaskGroup | None = None
        self.work = WorkTasks()

    async def serve(self) -> None:
        """Subscribe, start the actor, and handle messages until cancelled."""
        kinds = list(self.actor.handlers)
        self._incarnation = message_id("life", self.identity.instance, self.now())
        try:
            async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                await self._fold.restore(self.now())
                await self.actor.start(self.submit)
                await self._subscribe(kinds, stack, tasks)
                tasks.create_task(self._send_heartbeats())
                if self.actor.tick_seconds and Tick in self.actor.handlers:
                    tasks.create_task(self._send_ticks())
                await self._announce()
                self.ready.set()
        finally:
            self._submissions.end()
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self.actor.stop()

    async def _subscribe(self, kinds: Sequence[type[Message]], stack: AsyncExitStack, tasks: asyncio.TaskGroup) -> None:
        instance = self.identity.instance
        if events := [kind for kind in kinds if issubclass(kind, Event)]:
            subscription = self.bus.events(
                *self._fold.subscribed_kinds(events),
                consumer=instance,
                history=self.actor.history,
                after=self._fold.after,
            )
            tasks.create_task(self._consume_events(await stack.enter_async_context(subscription)))
        else:
            self._caught_up.set()
        for kind in kinds:
            if issubclass(kind, Work):
                self.work.taking.append(
                    tasks.create_task(self._take_work(await stack.enter_async_context(self.bus.work(kind))))
                )
        if requests := [kind for kind in kinds if issubclass(kind, Request)]:
            subscription = self.bus.requests(*requests, group=self.actor.kind(), address=instance)
            tasks.create_task(self._serve_requests(await stack.enter_async_context(subscription)))
        if telemetry := [kind for kind in kinds if issubclass(kind, Telemetry) and kind is not Tick]:
            tasks.create_task(self._consume(await stack.enter_async_context(self.bus.telemetry(*telemetry))))

    async def _announce(self) -> None:
        instance, now = self.identity.instance, self.now()
        started = ActorStarted(actor=instance, process=self.identity.process, pid=os.getpid())
        await self.bus.publish(started, Stamp(id=message_id("started", instance, now), sender=instance, time=now))

    async def _consume_events(self, subscription: Subscription) -> None:
        for _ in range(subscription.backlog):
            await self._receive(await anext(subscription))
        self._caught_up.set()
        await self._consume(subscription)

    async def _consume(self, subscription: Subscription) -> None:
        async for delivery in subscription:
            await self._receive(delivery)

    async def _receive(self, delivery: Delivery) -> None:
        folds = self.actor.history == "all"
        envelope = delivery.envelope if folds else with_new_id(delivery.envelope, self._incarnation)
        async with self._serialize():
            if type(delivery.message) in self.actor.handlers:
                await self._handle(envelope, delivery.message, replayed=delivery.replayed and folds)
            self._fold.on_folded(delivery, self._tasks, self.now())
        if not delivery.replayed:
            await delivery.acknowledge()

    async def _take_work(self, queue: WorkQueue) -> None:
        """Take work items, once all past events have been handled."""
        assert self._tasks is not None
        await self._caught_up.wait()
        slots = asyncio.Semaphore(self.actor.concurrency)
        while True:
            free = await take_slots(slots)
            taken = await queue.take(free)
            for _ in range(free - len(taken)):
                slots.release()
            for delivery in taken:
                self.work.add(self._tasks.create_task(self._work(delivery, queue.lease_seconds, slots)))

    async def _work(self, delivery: Delivery, lease_seconds: float, slots: asyncio.Semaphore) -> None:
        envelope = delivery.envelope
        if delivery.deliveries > 1:
            envelope = with_new_id(envelope, str(delivery.deliveries))
        try:
            with self.work.keep_lease(delivery, lease_seconds):
                async with self._serialize():
                    await self._handle(envelope, delivery.message)
                await delivery.acknowledge()
        finally:
            slots.release()

    async def _serve_requests(self, subscription: Subscription) -> None:
        assert self._tasks is not None
        slots = asyncio.Semaphore(self.actor.concurrency)
        async for delivery in subscription:
            await slots.acquire()
            replying = self._tasks.create_task(self._reply(delivery, slots))
            delivery.on_cancelled(replying.cancel)

    async def _reply(self, delivery: Delivery, slots: asyncio.Semaphore) -> None:
        async def send_reply(part: Reply, stamp: Stamp) -> None:
            await self.bus.reply(delivery.reply_to, part, stamp, last=part.is_last())

        try:
            async with self._serialize():
                await self._handle(delivery.envelope, delivery.message, send_reply=send_reply)
        finally:
            slots.release()

    @asynccontextmanager
    async def _serialize(self) -> AsyncIterator[None]:
        if self._serial is None:
            yield
            return
        async with self._serial:
            yield

    async def _handle(
        self,
        envelope: Envelope,
        message: Message,
        *,
        replayed: bool = False,
        send_reply: SendReply | None = None,
    ) -> None:
        """Run the handler of a message and send the messages that it emits."""
        context = LiveContext(self, envelope, replayed=replayed)
        name, sent = type(message).__name__, SentWork()
        self.handling[name] += 1
        if not replayed:
            self.recorder.note(RECEIVED, context.cause, context.now, envelope)
        try:
            async with aclosing(self.actor.receive(message, context)) as emitted:
                async for emitted_message in emitted:
                    if not replayed:
                        await self._emit(emitted_message, context, send_reply, sent)
            await sent.confirm()
            self.handled = self.handled or not (replayed or isinstance(message, Tick))
        finally:
            sent.cancel()
            self.handling[name] -= 1

    async def _emit(self, message: Message, context: LiveContext, send_reply: SendReply | None, sent: SentWork) -> None:
        stamp = context.stamp(message)
        self.recorder.note_message(EMITTED, context.cause, stamp.time, message, stamp)
        if isinstance(message, Reply):
            if send_reply is not None:
                await send_reply(message, stamp)
        elif isinstance(message, Work):
            await sent.add(self.bus.publish(message, stamp))
        elif isinstance(message, PUBLISHED):
            await sent.confirm()
            await self.bus.publish(message, stamp)

    def submit(self, request: Request[R]) -> AsyncGenerator[R, None]:
        """Handle a request from outside the bus in the caller's task.

        Closing the generator before the last part ends the handler.

        Raises:
            NoResponder: the handler ended early, since the actor stopped or failed.
        """
        assert self._tasks is not None
        self._submitted += 1
        stamp = Stamp(id=f"{self._incarnation}-outside-{self._submitted}", sender="outside", time=self.now())
        return self._replies(self.recorder.local_envelope(request, stamp), request)

    async def _replies(self, envelope: Envelope, request: Request[R]) -> AsyncGenerator[R, None]:
        """Run the handler of a request; yields the parts of its reply, the last one after its other messages."""
        context, sent = LiveContext(self, envelope, replayed=False), cast(SentWork | None, None)
        name, last = type(request).__name__, list[R]()
        with self._submissions.begin(request) as submission:
            self.handling[name] += 1
            self.recorder.note(RECEIVED, context.cause, context.now, envelope)
            try:
                async with aclosing(self.actor.receive(request, context)) as emitted:
                    async for message in emitted:
                        part: Any = message if isinstance(message, Reply) else None
                        if part is None or self.tape:
                            sent = sent or SentWork()
                            await self._emit(message, context, None, sent)
                        if part is None or last:
                            continue
                        if part.is_last():
                            last.append(part)
                        else:
                            submission.is_inside = False
                            yield part
                            submission.is_inside = True
                            if submission.is_over:
                                break
                    else:
                        if sent is not None:
                            await sent.confirm()
                        self.handled = True
            finally:
                if sent is not None:
                    sent.cancel()
                self.handling[name] -= 1
        if not last:
            raise self._submissions.no_reply(request)
        yield last[0]

    def _fail(self, error: Exception) -> None:
        """End the runtime with the error of a handler that no task of its own runs."""
        assert self._tasks is not None
        failing = fail_with(error)
        try:
            self._tasks.create_task(failing)
        except RuntimeError:  # the actor has failed already
            failing.close()

    async def _send_ticks(self) -> None:
        count = 0
        while True:
            seconds = self.actor.next_tick_seconds()
            await asyncio.sleep(seconds_to_next(seconds, self.now()))
            count += 1
            tick = Tick(paused=self.pauses.look(seconds))
            stamp = Stamp(id=f"{self._incarnation}-tick-{count}", sender="clock", time=self.now())
            async with self._serialize():
                await self._handle(self.recorder.local_envelope(tick, stamp), tick)

    async def _send_heartbeats(self) -> None:
        beats, instance = 0, self.identity.instance
        pace = HeartbeatPace(self.heartbeat_seconds, self.quiet_seconds)
        while True:
            handling = {name: count for name, count in self.handling.items() if count}
            waits = tuple(sorted(self.waits.values(), key=lambda wait: wait.since)[:LONGEST_WAITS])
            status = dict(self.actor.status())
            if pace.is_due((handling, waits, status), self.now()):
                beats += 1
                beat = Heartbeat(
                    actor=instance,
                    process=self.identity.process,
                    handling=handling,
                    waits=waits,
                    status=status,
                    **process_usage(),
                )
                stamp = Stamp(id=f"{instance}-{os.getpid()}-beat-{beats}", sender=instance, time=self.now())
                await self.bus.publish(beat, stamp)
            await asyncio.sleep(seconds_to_next(self.heartbeat_seconds, self.now()))
