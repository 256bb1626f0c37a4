"""The bus over NATS: what runs in production, and what an external monitor subscribes to.

    areal.<run>.<subject>              events and work, kept by JetStream; requests to anybody; telemetry
    areal.<run>._.<address>.<subject>  requests to one instance

On the wire is the envelope in msgpack. Events and work carry their id for the server, which keeps each once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar, cast

import msgspec
import structlog
from nats.aio.msg import Msg

from bus.base import Envelope, Hearing, History, Stamp, WorkQueue
from bus.claims import INLINE_LIMIT, check_in, check_out
from bus.delivery import (
    TELEMETRY_BACKLOG,
    Asked,
    Deliveries,
    Kinds,
    Position,
    Received,
    by_subject,
    open_event,
    open_live,
    put_or_drop_oldest,
)
from bus.errors import BusError, CorruptMessage, NoReply, NoResponder, ServerUnavailable
from bus.message import Event, Message, Reply, Request, Telemetry, Work
from bus.nats_journal import Journal
from bus.nats_link import Inbox, Link, status
from bus.nats_position import PositionKeeper, stored_position
from bus.nats_reader import LogReader, unpack
from bus.nats_work import NatsWorkQueue
from bus.subjects import check_key, check_pattern, check_run, check_token, matches

R = TypeVar("R", bound=Reply)

DUPLICATE_SECONDS: Final = 3600.0
"""A message said again within so long is kept once, unless a bus is told otherwise."""
_WATCH_BACKLOG: Final = 65536
_MORE: Final = "Areal-More"
_LEFT: Final = "Areal-Left"
"""Header of a part of an answer that is not the last."""

_logger = structlog.get_logger(__name__)


class NatsBus:
    """One process's connection to the bus of a run."""

    def __init__(self, link: Link, run: str, *, blobs: Path | None, lease_seconds: float, patience: float) -> None:
        self.run = run
        self._link = link
        self._journal = Journal(link, run, patience=patience)
        self._prefix = self._journal.prefix
        self._blobs = blobs
        self._lease_seconds = lease_seconds

    @classmethod
    async def connect(
        cls,
        url: str,
        run: str,
        *,
        name: str,
        token: str = "",
        kinds: Sequence[type[Message]] = (),
        blobs: Path | None = None,
        lease_seconds: float = 5.0,
        patience: float = 30.0,
        connect_timeout: float = 10.0,
    ) -> NatsBus:
        """Join the bus of a run.

        With `kinds`, what the run keeps is provisioned for them first. `name` is what the server's monitoring shows.
        `blobs` is the folder for bodies beyond 256 KiB, the same for all processes of the run. `patience` is how long,
        in seconds, a message may wait for a server that is away before it is an error; `connect_timeout` how long the
        server may take to answer at first.

        Raises:
            ServerUnavailable: no server answers, it refused the token, or it is older than 2.12.
            LogUnavailable: it cannot keep the run's streams.
        """
        check_run(run)
        link = await Link.open(url, name=name, token=token, timeout=connect_timeout)
        bus = cls(link, run, blobs=blobs, lease_seconds=lease_seconds, patience=patience)
        try:
            if kinds:
                await bus.provision(kinds)
        except BaseException:
            await bus.close()
            raise
        return bus

    async def provision(self, kinds: Sequence[type[Message]], *, replicas: int = 1, duplicate_seconds: float = DUPLICATE_SECONDS) -> None:
        """Create the run's log, work queue and bucket for these kinds, or add the kinds to what is there.

        A message said again within `duplicate_seconds` is kept once. `replicas` is for clusters.

        Raises:
            LogUnavailable: the server refuses; the message says why.
        """
        await self._journal.provision(kinds, replicas=replicas, duplicate_seconds=duplicate_seconds)

    async def wait_lost(self) -> str:
        """Wait until the connection is lost for good, and say why: the process cannot go on then."""
        return await self._link.wait_lost()

    async def remember_ids(self, seconds: float) -> None:
        """Keep what is said again within so long once, from the server's next start on: for a run that goes on after a pause.

        Raises:
            LogUnavailable: the server refuses.
        """
        await self._journal.remember_ids(seconds)

    async def barrier(self) -> None:
        """Return when the server has seen everything said so far."""
        await self._link.barrier()

    async def close(self) -> None:
        """Deliver what is buffered and leave."""
        await self._link.close()

    # ------------------------------------------------------------ saying

    async def publish(self, message: Event | Work | Telemetry, stamp: Stamp) -> int:
        """Append an event, queue work, or tell telemetry to who listens now.

        What tasks say at once is on its way together, in the order in which the tasks began; a server that goes away in
        between can change that order.
        """
        payload = self._pack(message, stamp)
        subject = self._prefix + message.subject
        if isinstance(message, Telemetry):
            if self._link.is_up or self._link.lost:
                await self._link.publish(subject, payload)
            return 0
        sequence = await self._journal.append(subject, payload, stamp.id)
        return sequence if isinstance(message, Event) else 0

    def _pack(self, message: Message, stamp: Stamp) -> bytes:
        envelope = Envelope.seal(message, stamp, self.run)
        if len(envelope.body) > INLINE_LIMIT and self._blobs is not None:
            envelope = check_in(envelope, self._blobs)
        return msgspec.msgpack.encode(envelope)

    # ------------------------------------------------------------ asking and answering

    async def request(self, message: Request[R], stamp: Stamp, *, timeout: float, to: str = "") -> R:
        """Ask and wait for the one answer."""
        with self._link.inbox() as inbox:
            await self._ask(message, stamp, to, inbox)
            return (await self._next_part(message, inbox, timeout))[0]

    async def request_stream(self, message: Request[R], stamp: Stamp, *, timeout: float, to: str = "") -> AsyncGenerator[R, None]:
        """Ask, and yield the parts of the answer."""
        with self._link.inbox() as inbox:
            await self._ask(message, stamp, to, inbox)
            last = False
            try:
                while not last:
                    part, last = await self._next_part(message, inbox, timeout)
                    yield part
            finally:
                if not last and to:
                    with suppress(BusError):
                        await self._link.publish(self._addressed(message.subject, to), b"", headers={_LEFT: inbox.address})

    async def _ask(self, message: Request[R], stamp: Stamp, to: str, inbox: Inbox) -> None:
        subject = self._addressed(message.subject, to) if to else self._prefix + message.subject
        await self._link.publish(subject, self._pack(message, stamp), reply=inbox.address)

    async def _next_part(self, message: Request[R], inbox: Inbox, timeout: float) -> tuple[R, bool]:
        try:
            answer = await inbox.next(timeout)
        except TimeoutError:
            raise NoReply(f"{message.subject}: no answer within {timeout} s") from None
        if status(answer) == "503":
            raise NoResponder(f"nobody serves {message.subject} now; is the actor that answers it running?")
        envelope = check_out(unpack(answer.data, where=f"answer to {message.subject}"), keep=False)
        last = answer.headers is None or _MORE not in answer.headers
        return cast(R, envelope.open(type(message).reply)), last

    async def reply(self, to: str, message: Reply, stamp: Stamp, *, last: bool = True) -> None:
        """Answer a request."""
        await self._link.publish(to, self._pack(message, stamp), headers=None if last else {_MORE: "1"})

    def _addressed(self, subject: str, address: str) -> str:
        return f"{self._prefix}_.{check_token('address', address)}.{subject}"

    # ------------------------------------------------------------ hearing

    @asynccontextmanager
    async def events(self, *kinds: type[Event], consumer: str, history: History = "all") -> AsyncIterator[Hearing]:
        """Hear events in log order as the durable consumer of this name."""
        opened = by_subject(*kinds)
        keeper = PositionKeeper(self._journal, check_token("consumer", consumer))
        reader = LogReader(self._journal, [self._prefix + subject for subject in opened], consumer)
        try:
            acknowledged = await keeper.open()
            end = await reader.open(history)
            position = Position(min(acknowledged, end), keeper.move)
            yield Deliveries(reader.next, lambda envelope: open_event(envelope, opened, position), earlier=reader.earlier)
        finally:
            await reader.close()
            await keeper.close()

    @asynccontextmanager
    async def work(self, kind: type[Work]) -> AsyncIterator[WorkQueue]:
        """Take part in the work of one kind; what this worker still holds when it leaves is given back."""
        queue = NatsWorkQueue(self._journal, kind, self._lease_seconds)
        try:
            await queue.open()
            yield queue
        finally:
            await queue.close()

    @asynccontextmanager
    async def requests(self, *kinds: type[Request[Reply]], group: str, address: str) -> AsyncIterator[Hearing]:
        """Serve these questions."""
        opened = by_subject(*kinds)
        queue: asyncio.Queue[Msg] = asyncio.Queue()
        asked = Asked()
        where = {self._prefix + subject: check_token("group", group) for subject in opened}
        where |= {self._addressed(subject, address): address for subject in opened}
        async with self._subscribed(where, queue, asked):
            yield Deliveries(queue.get, lambda message: asked.took(self._open_live(message, opened, keep=False)))

    @asynccontextmanager
    async def telemetry(self, *kinds: type[Telemetry]) -> AsyncIterator[Hearing]:
        """Hear telemetry from now on."""
        opened = by_subject(*kinds)
        queue: asyncio.Queue[Msg] = asyncio.Queue(TELEMETRY_BACKLOG)
        async with self._subscribed({self._prefix + subject: "" for subject in opened}, queue):
            yield Deliveries(queue.get, lambda message: self._open_live(message, opened))

    def _open_live(self, message: Msg, kinds: Kinds, *, keep: bool = True) -> Received | None:
        try:
            envelope = check_out(unpack(message.data, where=message.subject), keep=keep)
        except BusError as error:
            _logger.warning("ignored a message", error=str(error))
            return None
        return open_live(envelope, kinds, message.reply)

    @asynccontextmanager
    async def _subscribed(self, where: dict[str, str], queue: asyncio.Queue[Msg], asked: Asked | None = None) -> AsyncIterator[None]:
        """Put what arrives at these subjects into the queue; each subject may be shared with a group.

        That an asker has left does not stand in line behind other questions: `asked` hears it at once.
        """
        dropped = 0

        async def hear(message: Msg) -> None:
            nonlocal dropped
            if asked is not None and message.headers and (left := message.headers.get(_LEFT)):
                asked.left(left)
                return
            dropped += put_or_drop_oldest(queue, message)

        subscriptions = [await self._link.subscribe(subject, hear, group=group) for subject, group in where.items()]
        try:
            await self._link.barrier()
            yield
        finally:
            for subscription in subscriptions:
                await self._link.unsubscribe(subscription)
            if self._link.is_up:
                # Who asks from now on is told at once that nobody is here.
                with suppress(ServerUnavailable):
                    await self._link.barrier()
            if dropped:
                _logger.warning("a listener was too slow", lost=dropped, subjects=list(where))

    # ------------------------------------------------------------ reading what was said

    async def log(self, *, after: int = 0, follow: bool = False) -> AsyncIterator[Envelope]:
        """Read the log in order, and with `follow` go on for ever; a gap in it is a `CorruptMessage`."""
        reader = LogReader(self._journal, [self._prefix + ">"], "log")
        try:
            end = await reader.open("all", after)
            while follow or after < end:
                envelope = await reader.next()
                if envelope.sequence != after + 1:
                    raise CorruptMessage(f"event {after + 1} of run {self.run} is missing in the server's store, which is damaged")
                after = envelope.sequence
                yield envelope
        finally:
            await reader.close()

    async def watch(self, subjects: str = ">") -> AsyncIterator[Envelope]:
        """Everything but replies whose subject matches, from the first step of the iteration on."""
        where = {self._prefix + check_pattern(subjects): "", f"{self._prefix}_.*.{subjects}": ""}
        if subjects.startswith(("*", ">")):
            where = {self._prefix + ">": ""}
        queue: asyncio.Queue[Msg] = asyncio.Queue(_WATCH_BACKLOG)
        async with self._subscribed(where, queue):
            while True:
                message = await queue.get()
                try:
                    envelope = unpack(message.data, where=message.subject)
                except CorruptMessage as error:
                    _logger.warning("ignored a message", error=str(error))
                    continue
                if matches(subjects, envelope.subject):
                    yield envelope

    async def read(self, sequences: Sequence[int]) -> list[Envelope]:
        """The events at these places of the log."""
        messages = await self._journal.read(sequences)
        return [
            check_out(unpack(message.data, where=f"sequence {sequence} of the log", sequence=sequence))
            for sequence, message in zip(sequences, messages, strict=True)
        ]

    async def position(self, consumer: str) -> int:
        """The last event that this durable consumer has acknowledged; 0 before the first."""
        return await stored_position(self._journal, consumer)

    async def last_event(self) -> Envelope | None:
        """The newest event of the log; None while there is none."""
        newest = await self._journal.last_sequence()
        return (await self.read([newest]))[0] if newest else None

    async def put(self, key: str, value: bytes) -> None:
        """Keep a value."""
        await self._journal.put(check_key(key), value)

    async def get(self, key: str) -> bytes | None:
        """The value under a key, or None."""
        return await self._journal.get(check_key(key))
