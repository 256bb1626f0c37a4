"""The bus in one process and one event loop: for tests, and for thousands of seeded runs of the whole system.

With a seed, what is in flight arrives in an order drawn from it, as late as it likes: events in log order to each
consumer, everything else in any order. The same seed gives the same run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TypeVar, cast

import msgspec

from bus.base import Envelope, Hearing, History, LogSpan, Stamp, WorkQueue
from bus.delivery import (
    TELEMETRY_BACKLOG,
    Asked,
    Deliveries,
    Kinds,
    Position,
    by_subject,
    open_event,
    open_live,
    put_or_drop_oldest,
    trimmed,
)
from bus.errors import EventsTrimmed, LogUnavailable, NoReply, NoResponder
from bus.memory_wire import Lane, Wire
from bus.memory_work import MemoryWorkQueue, Shelf
from bus.message import Event, Reply, Request, Telemetry, Work
from bus.subjects import check_key, check_pattern, check_run, check_token, matches

R = TypeVar("R", bound=Reply)


class MemoryBus:
    """A bus whose log is a list. One object serves all actors of a simulation."""

    def __init__(self, run: str = "test", seed: int | None = None, *, lease_seconds: float = 5.0) -> None:
        self.run = check_run(run)
        self._lease_seconds = lease_seconds
        self._wire = Wire(seed)
        self._log: list[Envelope] = []
        self._first = 1
        """Sequence of the first event in it."""
        self._sequences: dict[str, int] = {}
        """Where each id stands in the log."""
        self._work_ids: set[str] = set()
        self._positions: dict[str, int] = {}
        """The last acknowledged sequence of each durable consumer."""
        self._listeners: dict[str, list[Lane]] = {}
        """Who hears the events and the telemetry of a subject."""
        self._shelves: dict[str, Shelf] = {}
        self._servers: dict[str, list[_Server]] = {}
        self._askers: dict[str, Lane] = {}
        self._asked = 0
        self._watchers: list[tuple[str, asyncio.Queue[Envelope]]] = []
        self._followers: list[asyncio.Event] = []
        self._values: dict[str, bytes] = {}

    # ------------------------------------------------------------ saying

    async def publish(self, message: Event | Work | Telemetry, stamp: Stamp) -> int:
        """Append an event, queue work, or tell telemetry to who listens now."""
        envelope = Envelope.seal(message, stamp, self.run)
        sequence = 0
        if isinstance(message, Event):
            sequence = self._append(envelope)
        elif isinstance(message, Work):
            self._queue_work(envelope)
        else:
            self._spread(envelope)
        await self._wire.confirm()
        return sequence

    def _append(self, envelope: Envelope) -> int:
        known = self._sequences.get(envelope.id)
        if known is not None:
            return known
        sequence = self._first + len(self._log)
        msgspec.structs.force_setattr(envelope, "sequence", sequence)
        self._sequences[envelope.id] = sequence
        self._log.append(envelope)
        self._spread(envelope)
        for follower in self._followers:
            follower.set()
        return sequence

    def _queue_work(self, envelope: Envelope) -> None:
        if envelope.id in self._work_ids:
            return
        self._work_ids.add(envelope.id)
        self._show(envelope)
        self._shelf(envelope.subject).add(envelope)

    def _spread(self, envelope: Envelope) -> None:
        self._show(envelope)
        for lane in self._listeners.get(envelope.subject, ()):
            self._wire.send(lane, envelope)

    def _show(self, envelope: Envelope) -> None:
        for pattern, queue in self._watchers:
            if matches(pattern, envelope.subject):
                queue.put_nowait(envelope)

    # ------------------------------------------------------------ asking and answering

    async def request(self, message: Request[R], stamp: Stamp, *, timeout: float, to: str = "") -> R:
        """Ask and wait for the one answer."""
        with self._asking(message, stamp, to) as (parts, _):
            return (await self._next_part(message, parts, timeout))[0]

    async def request_stream(self, message: Request[R], stamp: Stamp, *, timeout: float, to: str = "") -> AsyncGenerator[R, None]:
        """Ask, and yield the parts of the answer."""
        with self._asking(message, stamp, to) as (parts, leave):
            last = False
            try:
                while not last:
                    part, last = await self._next_part(message, parts, timeout)
                    yield part
            finally:
                if not last and to:
                    leave()

    @contextmanager
    def _asking(self, message: Request[R], stamp: Stamp, to: str) -> Iterator[tuple[_Parts, Callable[[], None]]]:
        envelope = Envelope.seal(message, stamp, self.run)
        self._show(envelope)
        servers = self._choose(envelope.subject, to)
        self._asked += 1
        reply_to = f"reply.{self._asked}"
        parts: _Parts = asyncio.Queue()
        self._askers[reply_to] = Lane(parts.put_nowait)
        for server in servers:
            self._wire.send(Lane(server.inbox.put_nowait), (envelope, reply_to))

        def leave() -> None:
            for server in servers:
                self._wire.send(Lane(server.asked.left), reply_to)

        try:
            yield parts, leave
        finally:
            del self._askers[reply_to]

    async def _next_part(self, message: Request[R], parts: _Parts, timeout: float) -> tuple[R, bool]:
        try:
            async with asyncio.timeout(timeout):
                envelope, last = await parts.get()
        except TimeoutError:
            raise NoReply(f"{message.subject}: no answer within {timeout} s") from None
        return cast(R, envelope.open(type(message).reply)), last

    def _choose(self, subject: str, to: str) -> list[_Server]:
        """The newest instance called `to`, or one member of each group that serves the subject."""
        serving = self._servers.get(subject, [])
        if to:
            chosen = [server for server in serving if server.address == to][-1:]
        else:
            groups: dict[str, list[_Server]] = {}
            for server in serving:
                groups.setdefault(server.group, []).append(server)
            chosen = [self._wire.pick(members) for members in groups.values()]
        if not chosen:
            raise NoResponder(f"nobody serves {subject}{' as ' + to if to else ''} now; is the actor that answers it running?")
        return chosen

    async def reply(self, to: str, message: Reply, stamp: Stamp, *, last: bool = True) -> None:
        """Answer; an asker that has given up hears nothing."""
        envelope = Envelope.seal(message, stamp, self.run)
        if (asker := self._askers.get(to)) is not None:
            self._wire.send(asker, (envelope, last))

    # ------------------------------------------------------------ hearing

    @asynccontextmanager
    async def events(self, *kinds: type[Event], consumer: str, history: History = "all", after: int = 0) -> AsyncIterator[Hearing]:
        """Hear events in log order as the durable consumer of this name."""
        opened = by_subject(*kinds)
        if history == "all" and after + 1 < self._first:
            raise EventsTrimmed(trimmed(consumer, after + 1, self._first, self.run))
        floor = max(self._positions.get(check_token("consumer", consumer), 0), after)
        position = Position(floor, partial(self._positions.__setitem__, consumer))
        queue: asyncio.Queue[Envelope] = asyncio.Queue()
        past = self._past(opened, history, after)
        for envelope in past:
            queue.put_nowait(envelope)
        with self._listening(Lane(queue.put_nowait), *kinds):
            yield Deliveries(queue.get, lambda envelope: open_event(envelope, opened, position), earlier=len(past))

    def _past(self, kinds: Kinds, history: History, after: int) -> list[Envelope]:
        if history == "new":
            return []
        past = [envelope for envelope in self._log if envelope.subject in kinds]
        if history == "all":
            return [envelope for envelope in past if envelope.sequence > after]
        return sorted({envelope.subject: envelope for envelope in past}.values(), key=lambda envelope: envelope.sequence)

    @asynccontextmanager
    async def work(self, kind: type[Work]) -> AsyncIterator[WorkQueue]:
        """Take part in the work of one kind; what this worker still holds when it leaves is given back."""
        queue = MemoryWorkQueue(self._shelf(kind.subject), kind)
        try:
            yield queue
        finally:
            queue.leave()

    @asynccontextmanager
    async def requests(self, *kinds: type[Request[Reply]], group: str, address: str) -> AsyncIterator[Hearing]:
        """Serve these questions."""
        opened = by_subject(*kinds)
        server = _Server(check_token("group", group), check_token("address", address))
        for subject in opened:
            self._servers.setdefault(subject, []).append(server)
        try:
            yield Deliveries(server.inbox.get, lambda question: server.asked.took(open_live(question[0], opened, question[1])))
        finally:
            for subject in opened:
                self._servers[subject].remove(server)

    @asynccontextmanager
    async def telemetry(self, *kinds: type[Telemetry]) -> AsyncIterator[Hearing]:
        """Hear telemetry from now on."""
        opened = by_subject(*kinds)
        queue: asyncio.Queue[Envelope] = asyncio.Queue(TELEMETRY_BACKLOG)
        with self._listening(Lane(partial(put_or_drop_oldest, queue)), *kinds):
            yield Deliveries(queue.get, lambda envelope: open_live(envelope, opened))

    @contextmanager
    def _listening(self, lane: Lane, *kinds: type[Event | Telemetry]) -> Iterator[None]:
        for kind in kinds:
            self._listeners.setdefault(kind.subject, []).append(lane)
        try:
            yield
        finally:
            for kind in kinds:
                self._listeners[kind.subject].remove(lane)

    # ------------------------------------------------------------ reading what was said

    async def log(self, *, after: int = 0, follow: bool = False) -> AsyncIterator[Envelope]:
        """Read the log in order, and with `follow` go on for ever."""
        grown = asyncio.Event()
        self._followers.append(grown)
        try:
            after = after or self._first - 1
            while True:
                while after < self._last():
                    if after + 1 < self._first:
                        raise EventsTrimmed(trimmed("a reader", after + 1, self._first, self.run))
                    after += 1
                    yield self._log[after - self._first]
                if not follow:
                    return
                grown.clear()
                await grown.wait()
        finally:
            self._followers.remove(grown)

    def _last(self) -> int:
        return self._first + len(self._log) - 1

    async def span(self) -> LogSpan:
        """Where the log begins and ends now."""
        return LogSpan(first=self._first, last=self._last(), bytes=sum(len(envelope.body) for envelope in self._log))

    async def trim(self, first: int) -> None:
        """Remove all events before this one."""
        gone = max(min(first, self._last()) - self._first, 0)
        self._log = self._log[gone:]
        self._first += gone

    async def watch(self, subjects: str = ">") -> AsyncIterator[Envelope]:
        """Everything but replies whose subject matches, from the first step of the iteration on."""
        watcher: tuple[str, asyncio.Queue[Envelope]] = (check_pattern(subjects), asyncio.Queue())
        self._watchers.append(watcher)
        try:
            while True:
                yield await watcher[1].get()
        finally:
            self._watchers.remove(watcher)

    async def read(self, sequences: Sequence[int]) -> list[Envelope]:
        """The events at these places of the log."""
        for sequence in sequences:
            if 1 <= sequence < self._first:
                raise EventsTrimmed(trimmed("a reader", sequence, self._first, self.run))
            if not self._first <= sequence <= self._last():
                raise LogUnavailable(f"sequence {sequence} is not in the log of run {self.run}, which ends at {self._last()}")
        return [self._log[sequence - self._first] for sequence in sequences]

    async def put(self, key: str, value: bytes) -> None:
        """Keep a value."""
        self._values[check_key(key)] = bytes(value)

    async def get(self, key: str) -> bytes | None:
        """The value under a key, or None."""
        return self._values.get(check_key(key))

    async def close(self) -> None:
        """Nothing is buffered; the log stays readable."""

    def _shelf(self, subject: str) -> Shelf:
        if subject not in self._shelves:
            self._shelves[subject] = Shelf(self._wire, self._lease_seconds)
        return self._shelves[subject]


_Parts = asyncio.Queue[tuple[Envelope, bool]]
"""Parts of an answer; true marks the last."""


class _Server:
    """Somebody who answers questions."""

    def __init__(self, group: str, address: str) -> None:
        self.group = group
        self.address = address
        self.inbox: asyncio.Queue[tuple[Envelope, str]] = asyncio.Queue()
        self.asked = Asked()
