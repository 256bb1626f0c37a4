"""The bus over NATS, for production and external monitors.

    <product>.<run>.<subject>              events and work, stored by JetStream; requests to any instance; telemetry
    <product>.<run>._.<address>.<subject>  requests to one instance

Messages are envelopes, packed (`payload`). Events and work carry their id in a header, by which the server deduplicates
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, aclosing, asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

import structlog
from nats.aio.msg import Msg

from areal_bus.base import Envelope, History, LogSpan, Stamp, Subscription, WorkQueue
from areal_bus.claims import INLINE_LIMIT, Blobs, check_in, check_out
from areal_bus.delivery import Deliveries, Kinds, OpenRequests, Received, by_subject, open_live
from areal_bus.errors import BusError, CorruptMessage, LogUnavailable
from areal_bus.message import Event, Message, Reply, Request, Telemetry, Work
from areal_bus.nats_connection import Connection
from areal_bus.nats_consumers import LogConsumers
from areal_bus.nats_direct import read_directly, span_directly
from areal_bus.nats_position import stored_position
from areal_bus.nats_requests import MORE, PART, Requester
from areal_bus.nats_streams import RETRY_SECONDS, Streams
from areal_bus.nats_subscriptions import subscribe
from areal_bus.nats_telemetry import SharedTelemetry
from areal_bus.nats_trimming import check_beginning, gap_error, marked_first, span_of, trim
from areal_bus.nats_work import NatsWorkQueue
from areal_bus.payload import pack, unpack
from areal_bus.subjects import check_key, check_pattern, check_run, check_token, matches
from areal_bus.users import MONITOR, user_of

R = TypeVar("R", bound=Reply)

DUPLICATE_SECONDS: Final = 3600.0
"""Default dedup window, in seconds, of events and work."""
_WATCH_BACKLOG: Final = 65536
_logger = structlog.get_logger(__name__)


class NatsBus:
    """One process's connection to the bus of a run."""

    def __init__(
        self,
        connection: Connection,
        run: str,
        *,
        blobs: Blobs | None,
        lease_seconds: float,
        retry_for_seconds: float,
        monitors: bool = False,
        shares_log: bool = False,
    ) -> None:
        self.run = run
        self._connection = connection
        self._streams = Streams(connection, run, retry_for_seconds=retry_for_seconds, blobs=blobs, monitors=monitors)
        self._consumers = LogConsumers(self._streams, shared=shares_log)
        self._prefix = self._streams.prefix
        self._blobs = blobs
        self._lease_seconds = lease_seconds
        self._retry_for_seconds = retry_for_seconds
        self._monitors = monitors
        self._telemetry = SharedTelemetry(connection, self._prefix, self._open_live)
        self._requester = Requester(connection, self._prefix, blobs, self._pack)
        self._parts: dict[str, int] = {}
        """Number of parts sent of each unfinished reply, by reply subject."""

    @classmethod
    async def connect(
        cls,
        url: str,
        run: str,
        *,
        name: str,
        token: str = "",
        kinds: Sequence[type[Message]] = (),
        replicas: int = 1,
        blobs: Blobs | None = None,
        lease_seconds: float = 5.0,
        retry_for_seconds: float = RETRY_SECONDS,
        connect_timeout: float = 10.0,
        monitors: bool = False,
        compress: bool = False,
        shares_log: bool = False,
    ) -> NatsBus:
        """Connect to the bus of a run.

        With `kinds`, the run's streams are provisioned for them, see `provision`. `name` is shown by the server.
        `blobs` is the folder for bodies beyond 256 KiB, the same for all processes of the run, or a store that reaches
        it. `retry_for_seconds` is the maximum wait of a message for an unavailable server before it is an error;
        `connect_timeout` that for the first connection. `url` may have user and password. With `monitors`, implied by
        the user `monitor`, the log is read without consumers, which that user may not create. With `shares_log`,
        consumers of all events and followers of the log share a reader: for a process with several.

        Raises:
            ServerUnavailable: no server answers, it refused the credentials, or it is older than 2.12.
            LogUnavailable: it cannot provide the run's streams.
        """
        check_run(run)
        connection = await Connection.open(url, name=name, token=token, timeout=connect_timeout)
        monitors = monitors or user_of(url) == MONITOR
        seconds = {"lease_seconds": lease_seconds, "retry_for_seconds": retry_for_seconds}
        bus = cls(connection, run, blobs=blobs, monitors=monitors, shares_log=shares_log, **seconds)
        try:
            if kinds:
                await bus.provision(kinds, replicas=replicas, compress=compress)
        except BaseException:
            await bus.close()
            raise
        return bus

    async def provision(
        self,
        kinds: Sequence[type[Message]],
        *,
        replicas: int = 1,
        duplicate_seconds: float = DUPLICATE_SECONDS,
        compress: bool = False,
    ) -> None:
        """Create the run's log, work queue and bucket for these kinds, or add the kinds to existing ones.

        `duplicate_seconds` is the dedup window. `replicas` is for clusters. `compress` has a new log's complete blocks
        compressed.

        Raises:
            LogUnavailable: the server refuses; the message gives the reason.
        """
        await self._streams.provision(kinds, replicas=replicas, duplicate_seconds=duplicate_seconds, compress=compress)

    async def wait_lost(self) -> str:
        """Wait until the connection is lost permanently; returns the reason."""
        return await self._connection.wait_lost()

    def on_reconnect(self, callback: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `callback` after every reconnection, and when the connection is lost, while the context lasts."""
        return self._connection.on_reconnect(callback)

    def give_up(self, reason: str) -> None:
        """Fail all pending and future operations with this reason: the server will not come back."""
        self._connection.give_up(reason)

    async def set_dedup_window(self, seconds: float) -> None:
        """Set the dedup window, in effect from the server's next start on: for a run that resumes after a pause.

        Raises:
            LogUnavailable: the server refuses.
        """
        await self._streams.set_dedup_window(seconds)

    async def barrier(self) -> None:
        """Return once the server has received all messages published so far."""
        await self._connection.barrier()

    async def close(self) -> None:
        """Send buffered messages and disconnect."""
        await self._connection.close()

    @property
    def streams(self) -> Streams:
        """Streams of the run on the server, to check or rewrite them."""
        return self._streams

    # ------------------------------------------------------------ publishing

    async def publish(self, message: Event | Work | Telemetry, stamp: Stamp) -> int:
        """Append an event, queue a work item, or send telemetry to current subscribers.

        Concurrent tasks publish in the order in which they called; a lost connection can change that order.
        """
        payload = self._pack(message, stamp)
        subject = self._prefix + message.subject
        if isinstance(message, Telemetry):
            if self._connection.is_up or self._connection.lost:
                await self._connection.publish(subject, payload)
            return 0
        sequence = await self._streams.append(subject, payload, stamp.id)
        return sequence if isinstance(message, Event) else 0

    def _pack(self, message: Message, stamp: Stamp) -> bytes:
        envelope = Envelope.seal(message, stamp, self.run)
        if len(envelope.body) > INLINE_LIMIT and self._blobs is not None:
            envelope = check_in(envelope, self._blobs)
        return pack(envelope, type(message))

    # ------------------------------------------------------------ requests

    async def request(self, message: Request[R], stamp: Stamp, *, timeout: float, to: str = "") -> R:
        """Send a request and wait for the one reply; sent again if the reply may be lost with the connection."""
        return await self._requester.request(message, stamp, timeout=timeout, to=to)

    def request_stream(
        self, message: Request[R], stamp: Stamp, *, timeout: float, to: str = ""
    ) -> AsyncGenerator[R, None]:
        """Send a request and yield the parts of the reply."""
        return self._requester.parts(message, stamp, timeout=timeout, to=to)

    async def reply(self, to: str, message: Reply, stamp: Stamp, *, last: bool = True) -> None:
        """Reply to a request."""
        number = self._parts.pop(to, 0)
        headers = {PART: str(number)} if number or not last else {}
        if not last:
            self._parts[to] = number + 1
            headers[MORE] = "1"
        await self._connection.publish(to, self._pack(message, stamp), headers=headers or None)

    # ------------------------------------------------------------ subscriptions

    def events(
        self, *kinds: type[Event], consumer: str, history: History = "all", after: int = 0
    ) -> AbstractAsyncContextManager[Subscription]:
        """Subscribe to events in log order as the durable consumer of this name."""
        return self._consumers.events(*kinds, consumer=consumer, history=history, after=after)

    @asynccontextmanager
    async def work(self, kind: type[Work]) -> AsyncIterator[WorkQueue]:
        """Join the queue of work of one kind; items that this worker still holds when it leaves are released."""
        queue = NatsWorkQueue(self._streams, kind, self._lease_seconds)
        try:
            await queue.open()
            yield queue
        finally:
            await queue.close()

    @asynccontextmanager
    async def requests(self, *kinds: type[Request[Reply]], group: str, address: str) -> AsyncIterator[Subscription]:
        """Serve these requests."""
        opened = by_subject(*kinds)
        queue, open_requests = asyncio.Queue[Msg](), OpenRequests()

        def cancel(reply_to: str) -> None:
            self._parts.pop(reply_to, None)
            open_requests.cancel(reply_to)

        groups = {self._prefix + subject: check_token("group", group) for subject in opened}
        # No group of one: for a while after an outage the server has the old connection, too, which would get a share
        # of the requests.
        groups |= {self._requester.addressed_subject(subject, address): "" for subject in opened}
        async with subscribe(self._connection, groups, queue, cancel):
            yield Deliveries(queue.get, lambda message: open_requests.add(self._open_live(message, opened, keep=False)))

    def telemetry(self, *kinds: type[Telemetry]) -> AbstractAsyncContextManager[Subscription]:
        """Subscribe to telemetry from now on."""
        return self._telemetry.subscribe(*kinds)

    def _open_live(self, message: Msg, kinds: Kinds, *, keep: bool = True) -> Received | None:
        try:
            envelope = check_out(unpack(message.data, where=message.subject), self._blobs, keep=keep)
        except BusError as error:
            _logger.warning("ignored a message", error=str(error))
            return None
        return open_live(envelope, kinds, message.reply)

    # ------------------------------------------------------------ the log

    async def log(self, *, after: int = 0, follow: bool = False) -> AsyncIterator[Envelope]:
        """Read the log in order; with `follow`, never end. A gap raises `CorruptMessage`, or `EventsTrimmed`."""
        if self._monitors:
            after = after or (await self.span()).first - 1
            events = read_directly(self._streams, after=after, follow=follow, retry_for_seconds=self._retry_for_seconds)
        else:
            after = after or await marked_first(self._streams) - 1
            events = self._consumers.log(after=after, follow=follow)
        async with aclosing(events) as envelopes:
            async for envelope in envelopes:
                if envelope.sequence != after + 1:
                    raise await gap_error(self._streams, self.run, after + 1, envelope.sequence)
                after = envelope.sequence
                yield envelope

    async def watch(self, subjects: str = ">") -> AsyncIterator[Envelope]:
        """Yield all messages but replies whose subject matches, from the first step of the iteration on."""
        patterns = {self._prefix + check_pattern(subjects): "", f"{self._prefix}_.*.{subjects}": ""}
        if subjects.startswith(("*", ">")):
            patterns = {self._prefix + ">": ""}
        queue: asyncio.Queue[Msg] = asyncio.Queue(_WATCH_BACKLOG)
        async with subscribe(self._connection, patterns, queue):
            while True:
                message = await queue.get()
                try:
                    envelope = unpack(message.data, where=message.subject)
                except CorruptMessage as error:
                    _logger.warning("ignored a message", error=str(error))
                    continue
                if matches(subjects, envelope.subject):
                    yield envelope

    async def span(self) -> LogSpan:
        """Returns the current range of the log."""
        return await (span_directly(self._streams) if self._monitors else span_of(self._streams))

    async def trim(self, first: int) -> None:
        """Remove all events before sequence `first`, and the files of their bodies."""
        await trim(self._streams, first, self._blobs if isinstance(self._blobs, Path) else None)

    async def read(self, sequences: Sequence[int]) -> list[Envelope]:
        """Returns the events at these sequences."""
        try:
            messages = await self._streams.read(sequences)
        except LogUnavailable:
            await check_beginning(self._streams, self.run, "a reader", max(min(sequences), 1) - 1)
            raise
        return [
            check_out(unpack(message.data, where=f"sequence {sequence} of the log", sequence=sequence), self._blobs)
            for sequence, message in zip(sequences, messages, strict=True)
        ]

    async def position(self, consumer: str) -> int:
        """Returns the sequence of the last event that a durable consumer has acknowledged; 0 if there is none."""
        return await stored_position(self._streams, consumer)

    async def put(self, key: str, value: bytes) -> None:
        """Set the value of a key."""
        await self._streams.put(check_key(key), value)

    async def get(self, key: str) -> bytes | None:
        """Returns the value of a key, or None."""
        return await self._streams.get(check_key(key))
