"""The bus in one process and one event loop, for tests and seeded simulations of the whole system.

With a seed, messages in flight arrive after random delays: events in log order at each consumer, all others in any
order. The same seed gives the same run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TypeVar, cast

import msgspec

from areal_bus.base import Envelope, History, LogSpan, Stamp, Subscription, WorkQueue
from areal_bus.delivery import (
    TELEMETRY_BACKLOG,
    Deliveries,
    Kinds,
    OpenRequests,
    Position,
    by_subject,
    open_event,
    open_live,
    put_or_drop_oldest,
    trimmed_error,
)
from areal_bus.errors import EventsTrimmed, LogUnavailable, NoReply, NoResponder
from areal_bus.memory_network import Lane, Network
from areal_bus.memory_work import LocalWorkQueue, MemoryWorkQueue
from areal_bus.message import Event, Reply, Request, Telemetry, Work
from areal_bus.subjects import check_key, check_pattern, check_run, check_token, matches

R = TypeVar("R", bound=Reply)


class MemoryBus:
    """A bus with its log in a list. One object serves all actors of a simulation."""

    def __init__(self, run: str = "test", seed: int | None = None, *, lease_seconds: float = 5.0) -> None:
        self.run = check_run(run)
        self._lease_seconds = lease_seconds
        self._network = Network(seed)
        self._log: list[Envelope] = []
        self._first = 1
        """Sequence of the first event in the log."""
        self._sequences: dict[str, int] = {}
        """Sequence in the log, by id."""
        self._work_ids: set[str] = set()
        self._positions: dict[str, int] = {}
        """The last acknowledged sequence of each durable consumer."""
        self._subscribers: dict[str, list[Lane]] = {}
        """Subscribers to events and telemetry, by subject."""
        self._work_queues: dict[str, LocalWorkQueue] = {}
        self._servers: dict[str, list[_Server]] = {}
        self._callers: dict[str, Lane] = {}
        self._request_count = 0
        self._watchers: list[tuple[str, asyncio.Queue[Envelope]]] = []
        self._followers: list[asyncio.Event] = []
        self._values: dict[str, bytes] = {}

    # ------------------------------------------------------------ publishing

    async def publish(self, message: Event | Work | Telemetry, stamp: Stamp) -> int:
        """Append an event, queue a work item, or send telemetry to current subscribers."""
        envelope = Envelope.seal(message, stamp, self.run)
        sequence = 0
        if isinstance(message, Event):
            sequence = self._append(envelope)
        elif isinstance(message, Work):
            self._queue_work(envelope)
        else:
            self._broadcast(envelope)
        await self._network.confirm()
        return sequence

    def _append(self, envelope: Envelope) -> int:
        sequence_before = self._sequences.get(envelope.id)
        if sequence_before is not None:
            return sequence_before
        sequence = self._first + len(self._log)
        msgspec.structs.force_setattr(envelope, "sequence", sequence)
        self._sequences[envelope.id] = sequence
        self._log.append(envelope)
        self._broadcast(envelope)
        for follower in self._followers:
            follower.set()
        return sequence

    def _queue_work(self, envelope: Envelope) -> None:
        if envelope.id in self._work_ids:
            return
        self._work_ids.add(envelope.id)
        self._notify_watchers(envelope)
        self._work_queue(envelope.subject).add(envelope)

    def _broadcast(self, envelope: Envelope) -> None:
        self._notify_watchers(envelope)
        for lane in self._subscribers.get(envelope.subject, ()):
            self._network.send(lane, envelope)

    def _notify_watchers(self, envelope: Envelope) -> None:
        for pattern, queue in self._watchers:
            if matches(pattern, envelope.subject):
                queue.put_nowait(envelope)

    # ------------------------------------------------------------ requests

    async def request(self, message: Request[R], stamp: Stamp, *, timeout: float, to: str = "") -> R:
        """Send a request and wait for the one reply."""
        with self._open_request(message, stamp, to) as (parts, _):
            return (await self._next_part(message, parts, timeout))[0]

    async def request_stream(
        self, message: Request[R], stamp: Stamp, *, timeout: float, to: str = ""
    ) -> AsyncGenerator[R, None]:
        """Send a request and yield the parts of the reply."""
        with self._open_request(message, stamp, to) as (parts, cancel):
            last = False
            try:
                while not last:
                    part, last = await self._next_part(message, parts, timeout)
                    yield part
            finally:
                if not last and to:
                    cancel()

    @contextmanager
    def _open_request(self, message: Request[R], stamp: Stamp, to: str) -> Iterator[tuple[_Parts, Callable[[], None]]]:
        envelope = Envelope.seal(message, stamp, self.run)
        self._notify_watchers(envelope)
        servers = self._choose(envelope.subject, to)
        self._request_count += 1
        reply_to = f"reply.{self._request_count}"
        parts: _Parts = asyncio.Queue()
        self._callers[reply_to] = Lane(parts.put_nowait)
        for server in servers:
            self._network.send(Lane(server.inbox.put_nowait), (envelope, reply_to))

        def cancel() -> None:
            for server in servers:
                self._network.send(Lane(server.open_requests.cancel), reply_to)

        try:
            yield parts, cancel
        finally:
            del self._callers[reply_to]

    async def _next_part(self, message: Request[R], parts: _Parts, timeout: float) -> tuple[R, bool]:
        try:
            async with asyncio.timeout(timeout):
                envelope, last = await parts.get()
        except TimeoutError:
            raise NoReply(f"{message.subject}: no reply within {timeout} s") from None
        return cast(R, envelope.open(type(message).reply)), last

    def _choose(self, subject: str, to: str) -> list[_Server]:
        """Returns the newest instance named `to`, or one member of each group that serves the subject."""
        serving = self._servers.get(subject, [])
        if to:
            chosen = [server for server in serving if server.address == to][-1:]
        else:
            groups: dict[str, list[_Server]] = {}
            for server in serving:
                groups.setdefault(server.group, []).append(server)
            chosen = [self._network.pick(members) for members in groups.values()]
        if not chosen:
            raise NoResponder(
                f"no process serves {subject}{' as ' + to if to else ''} now; is the actor that answers it running?"
            )
        return chosen

    async def reply(self, to: str, message: Reply, stamp: Stamp, *, last: bool = True) -> None:
        """Send a reply; it is dropped if the caller has left."""
        envelope = Envelope.seal(message, stamp, self.run)
        if (caller := self._callers.get(to)) is not None:
            self._network.send(caller, (envelope, last))

    # ------------------------------------------------------------ subscriptions

    @asynccontextmanager
    async def events(
        self, *kinds: type[Event], consumer: str, history: History = "all", after: int = 0
    ) -> AsyncIterator[Subscription]:
        """Subscribe to events in log order as the durable consumer of this name."""
        opened = by_subject(*kinds)
        if history == "all" and after + 1 < self._first:
            raise EventsTrimmed(trimmed_error(consumer, after + 1, self._first, self.run))
        positions = self._positions if history == "all" else {}
        floor = max(positions.get(check_token("consumer", consumer), 0), after)
        position = Position(floor, partial(positions.__setitem__, consumer))
        queue: asyncio.Queue[Envelope] = asyncio.Queue()
        past = self._past(opened, history, after)
        for envelope in past:
            queue.put_nowait(envelope)
        with self._subscribe_lane(Lane(queue.put_nowait), *kinds):
            yield Deliveries(queue.get, lambda envelope: open_event(envelope, opened, position), backlog=len(past))

    def _past(self, kinds: Kinds, history: History, after: int) -> list[Envelope]:
        if history == "new":
            return []
        past = [envelope for envelope in self._log if envelope.subject in kinds]
        if history == "all":
            return [envelope for envelope in past if envelope.sequence > after]
        return sorted(
            {envelope.subject: envelope for envelope in past}.values(), key=lambda envelope: envelope.sequence
        )

    @asynccontextmanager
    async def work(self, kind: type[Work]) -> AsyncIterator[WorkQueue]:
        """Join the queue of work of one kind; items that this worker still holds when it leaves are released."""
        queue = MemoryWorkQueue(self._work_queue(kind.subject), kind)
        try:
            yield queue
        finally:
            queue.leave()

    @asynccontextmanager
    async def requests(self, *kinds: type[Request[Reply]], group: str, address: str) -> AsyncIterator[Subscription]:
        """Serve these requests."""
        opened = by_subject(*kinds)
        server = _Server(check_token("group", group), check_token("address", address))
        for subject in opened:
            self._servers.setdefault(subject, []).append(server)
        try:
            yield Deliveries(
                server.inbox.get, lambda request: server.open_requests.add(open_live(request[0], opened, request[1]))
            )
        finally:
            for subject in opened:
                self._servers[subject].remove(server)

    @asynccontextmanager
    async def telemetry(self, *kinds: type[Telemetry]) -> AsyncIterator[Subscription]:
        """Subscribe to telemetry from now on."""
        opened = by_subject(*kinds)
        queue: asyncio.Queue[Envelope] = asyncio.Queue(TELEMETRY_BACKLOG)
        with self._subscribe_lane(Lane(partial(put_or_drop_oldest, queue)), *kinds):
            yield Deliveries(queue.get, lambda envelope: open_live(envelope, opened))

    @contextmanager
    def _subscribe_lane(self, lane: Lane, *kinds: type[Event | Telemetry]) -> Iterator[None]:
        for kind in kinds:
            self._subscribers.setdefault(kind.subject, []).append(lane)
        try:
            yield
        finally:
            for kind in kinds:
                self._subscribers[kind.subject].remove(lane)

    # ------------------------------------------------------------ the log

    async def log(self, *, after: int = 0, follow: bool = False) -> AsyncIterator[Envelope]:
        """Read the log in order; with `follow`, never end."""
        appended = asyncio.Event()
        self._followers.append(appended)
        try:
            after = after or self._first - 1
            while True:
                while after < self._last():
                    if after + 1 < self._first:
                        raise EventsTrimmed(trimmed_error("a reader", after + 1, self._first, self.run))
                    after += 1
                    yield self._log[after - self._first]
                if not follow:
                    return
                appended.clear()
                await appended.wait()
        finally:
            self._followers.remove(appended)

    def _last(self) -> int:
        return self._first + len(self._log) - 1

    async def span(self) -> LogSpan:
        """Returns the current range of the log."""
        return LogSpan(first=self._first, last=self._last(), bytes=sum(len(envelope.body) for envelope in self._log))

    async def trim(self, first: int) -> None:
        """Remove all events before this one."""
        removed = max(min(first, self._last()) - self._first, 0)
        self._log = self._log[removed:]
        self._first += removed

    async def watch(self, subjects: str = ">") -> AsyncIterator[Envelope]:
        """Yield all messages but replies whose subject matches, from the first step of the iteration on."""
        watcher: tuple[str, asyncio.Queue[Envelope]] = (check_pattern(subjects), asyncio.Queue())
        self._watchers.append(watcher)
        try:
            while True:
                yield await watcher[1].get()
        finally:
            self._watchers.remove(watcher)

    async def read(self, sequences: Sequence[int]) -> list[Envelope]:
        """Returns the events at these sequences."""
        for sequence in sequences:
            if 1 <= sequence < self._first:
                raise EventsTrimmed(trimmed_error("a reader", sequence, self._first, self.run))
            if not self._first <= sequence <= self._last():
                raise LogUnavailable(
                    f"sequence {sequence} is not in the log of run {self.run}, which ends at {self._last()}"
                )
        return [self._log[sequence - self._first] for sequence in sequences]

    async def put(self, key: str, value: bytes) -> None:
        """Set the value of a key."""
        self._values[check_key(key)] = bytes(value)

    async def get(self, key: str) -> bytes | None:
        """Returns the value of a key, or None."""
        return self._values.get(check_key(key))

    async def close(self) -> None:
        """Do nothing: no message is buffered, and the log stays readable."""

    def _work_queue(self, subject: str) -> LocalWorkQueue:
        if subject not in self._work_queues:
            self._work_queues[subject] = LocalWorkQueue(self._network, self._lease_seconds)
        return self._work_queues[subject]


_Parts = asyncio.Queue[tuple[Envelope, bool]]
"""Parts of a reply; True marks the last."""


class _Server:
    """A responder."""

    def __init__(self, group: str, address: str) -> None:
        self.group = group
        self.address = address
        self.inbox: asyncio.Queue[tuple[Envelope, str]] = asyncio.Queue()
        self.open_requests = OpenRequests()
