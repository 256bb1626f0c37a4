"""The bus over NATS: what runs in production, and what an external monitor subscribes to.

    areal.<run>.<subject>              events and work, kept by JetStream; requests to anybody; telemetry
    areal.<run>._.<address>.<subject>  requests to one instance

On the wire is the envelope in msgpack. Events and work carry their id for the server, which keeps each once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar, cast

import msgspec
import structlog
from nats.aio.msg import Msg

from bus.base import Envelope, Hearing, History, LogSpan, Stamp, WorkQueue
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
)
from bus.errors import AnswerLost, BusError, CorruptMessage, LogUnavailable, NoReply, NoResponder
from bus.message import Event, Message, Reply, Request, Telemetry, Work
from bus.nats_direct import read_directly, span_directly
from bus.nats_inbox import Broken, Inbox
from bus.nats_journal import Journal
from bus.nats_link import Link, status
from bus.nats_listening import LEFT, subscribed
from bus.nats_position import PositionKeeper, stored_position
from bus.nats_reader import LogReader, unpack
from bus.nats_trimming import check_beginning, gap_error, marked_first, read_log, span_of, trim
from bus.nats_work import NatsWorkQueue
from bus.subjects import check_key, check_pattern, check_run, check_token, matches
from bus.users import MONITOR, user_of

R = TypeVar("R", bound=Reply)

DUPLICATE_SECONDS: Final = 3600.0
"""A message said again within so long is kept once, unless a bus is told otherwise."""
_WATCH_BACKLOG: Final = 65536
_MORE: Final = "Areal-More"
"""Header of a part of an answer that is not the last."""
_PART: Final = "Areal-Part"
"""Header of a part of an answer in parts: its number, from 0."""
_RETURN_GRACE_SECONDS: Final = 6.0
"""After the server's return others may take this long to be connected again; before, nobody is known to be gone."""
_AGAIN_SECONDS: Final = 0.1

_logger = structlog.get_logger(__name__)


class NatsBus:
    """One process's connection to the bus of a run."""

    def __init__(self, link: Link, run: str, *, blobs: Path | None, lease_seconds: float, patience: float, monitors: bool = False) -> None:
        self.run = run
        self._link = link
        self._journal = Journal(link, run, patience=patience, blobs=blobs)
        self._prefix = self._journal.prefix
        self._blobs = blobs
        self._lease_seconds = lease_seconds
        self._patience = patience
        self._monitors = monitors
        self._parts: dict[str, int] = {}
        """Parts sent of each answer that is not whole yet, by where it goes."""

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
        monitors: bool = False,
    ) -> NatsBus:
        """Join the bus of a run.

        With `kinds`, what the run keeps is provisioned for them first. `name` is what the server's monitoring shows.
        `blobs` is the folder for bodies beyond 256 KiB, the same for all processes of the run. `patience` is how long,
        in seconds, a message may wait for a server that is away before it is an error; `connect_timeout` how long the
        server may take to answer at first. `url` may hold a user's name and password. A bus that only `monitors`, as
        one of the user `monitor` does, reads the log without making consumers, which that user may not.

        Raises:
            ServerUnavailable: no server answers, it refused the credentials, or it is older than 2.12.
            LogUnavailable: it cannot keep the run's streams.
        """
        check_run(run)
        link = await Link.open(url, name=name, token=token, timeout=connect_timeout)
        monitors = monitors or user_of(url) == MONITOR
        bus = cls(link, run, blobs=blobs, lease_seconds=lease_seconds, patience=patience, monitors=monitors)
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

    def give_up(self, reason: str) -> None:
        """Fail whatever waits for the server, now and from now on, with this reason: it will not come back."""
        self._link.give_up(reason)

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

    @property
    def journal(self) -> Journal:
        """What the server keeps for the run: for those who check or rewrite it."""
        return self._journal

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
        """Ask and wait for the one answer; a question whose answer may be lost with the connection is asked again."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            try:
                with self._link.inbox(until_broken=True, of_server=False) as inbox:
                    await self._ask(message, stamp, to, inbox)
                    return (await self._next_part(message, inbox, max(deadline - loop.time(), 0.0), 0, timeout))[0]
            except (AnswerLost, NoResponder) as error:
                if loop.time() >= deadline or (isinstance(error, NoResponder) and not self._has_just_returned()):
                    raise
            await asyncio.sleep(_AGAIN_SECONDS)

    async def request_stream(self, message: Request[R], stamp: Stamp, *, timeout: float, to: str = "") -> AsyncGenerator[R, None]:
        """Ask, and yield the parts of the answer."""
        with self._link.inbox(until_broken=True, of_server=False) as inbox:
            await self._ask(message, stamp, to, inbox)
            last, received = False, 0
            try:
                while not last:
                    try:
                        part, last = await self._next_part(message, inbox, timeout, received, timeout)
                    except NoResponder:
                        if received or not self._has_just_returned():
                            raise
                        await asyncio.sleep(_AGAIN_SECONDS)
                        await self._ask(message, stamp, to, inbox)
                        continue
                    received += 1
                    yield part
            finally:
                if not last and to:
                    with suppress(BusError):
                        await self._link.publish(self._addressed(message.subject, to), b"", headers={LEFT: inbox.address})

    async def _ask(self, message: Request[R], stamp: Stamp, to: str, inbox: Inbox) -> None:
        subject = self._addressed(message.subject, to) if to else self._prefix + message.subject
        await self._link.publish(subject, self._pack(message, stamp), reply=inbox.address)

    def _has_just_returned(self) -> bool:
        """Whether those who serve may not be connected again yet."""
        return asyncio.get_running_loop().time() - self._link.returned_at < _RETURN_GRACE_SECONDS

    async def _next_part(self, message: Request[R], inbox: Inbox, wait: float, number: int, timeout: float) -> tuple[R, bool]:
        """Part `number` of the answer, within `wait` of the asker's `timeout`, and whether it is the last."""
        try:
            answer = await inbox.next(wait)
        except TimeoutError:
            raise NoReply(f"{message.subject}: no answer within {timeout:g} s") from None
        except Broken as error:
            raise AnswerLost(f"{message.subject}: {error} while the answer was awaited; it may be lost, ask again") from None
        if status(answer) == "503":
            raise NoResponder(f"nobody serves {message.subject} now; is the actor that answers it running?")
        envelope = check_out(unpack(answer.data, where=f"answer to {message.subject}"), self._blobs, keep=False)
        headers = answer.headers or {}
        last = _MORE not in headers
        if (found := int(headers.get(_PART, 0))) != number:
            raise AnswerLost(f"{message.subject}: part {number} of the answer is lost, part {found} came instead; ask again")
        return cast(R, envelope.open(type(message).reply)), last

    async def reply(self, to: str, message: Reply, stamp: Stamp, *, last: bool = True) -> None:
        """Answer a request."""
        number = self._parts.pop(to, 0)
        headers = {_PART: str(number)} if number or not last else {}
        if not last:
            self._parts[to] = number + 1
            headers[_MORE] = "1"
        await self._link.publish(to, self._pack(message, stamp), headers=headers or None)

    def _addressed(self, subject: str, address: str) -> str:
        return f"{self._prefix}_.{check_token('address', address)}.{subject}"

    # ------------------------------------------------------------ hearing

    @asynccontextmanager
    async def events(self, *kinds: type[Event], consumer: str, history: History = "all", after: int = 0) -> AsyncIterator[Hearing]:
        """Hear events in log order as the durable consumer of this name."""
        opened = by_subject(*kinds)
        keeper = PositionKeeper(self._journal, check_token("consumer", consumer))
        reader = LogReader(self._journal, [self._prefix + subject for subject in opened], consumer)
        try:
            acknowledged = await keeper.open()
            end = await reader.open(history, after)
            if history == "all":
                await check_beginning(self._journal, self.run, consumer, after)
            position = Position(max(min(acknowledged, end), after), keeper.move)
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

        def left(address: str) -> None:
            self._parts.pop(address, None)
            asked.left(address)

        where = {self._prefix + subject: check_token("group", group) for subject in opened}
        where |= {self._addressed(subject, address): address for subject in opened}
        async with subscribed(self._link, where, queue, left):
            yield Deliveries(queue.get, lambda message: asked.took(self._open_live(message, opened, keep=False)))

    @asynccontextmanager
    async def telemetry(self, *kinds: type[Telemetry]) -> AsyncIterator[Hearing]:
        """Hear telemetry from now on."""
        opened = by_subject(*kinds)
        queue: asyncio.Queue[Msg] = asyncio.Queue(TELEMETRY_BACKLOG)
        async with subscribed(self._link, {self._prefix + subject: "" for subject in opened}, queue):
            yield Deliveries(queue.get, lambda message: self._open_live(message, opened))

    def _open_live(self, message: Msg, kinds: Kinds, *, keep: bool = True) -> Received | None:
        try:
            envelope = check_out(unpack(message.data, where=message.subject), self._blobs, keep=keep)
        except BusError as error:
            _logger.warning("ignored a message", error=str(error))
            return None
        return open_live(envelope, kinds, message.reply)

    # ------------------------------------------------------------ reading what was said

    async def log(self, *, after: int = 0, follow: bool = False) -> AsyncIterator[Envelope]:
        """Read the log in order, and with `follow` go on for ever; a gap in it is a `CorruptMessage`, or was trimmed."""
        if self._monitors:
            after = after or (await self.span()).first - 1
            events = read_directly(self._journal, after=after, follow=follow, patience=self._patience)
        else:
            after = after or await marked_first(self._journal) - 1
            events = read_log(self._journal, after=after, follow=follow)
        async with aclosing(events) as envelopes:
            async for envelope in envelopes:
                if envelope.sequence != after + 1:
                    raise await gap_error(self._journal, self.run, after + 1, envelope.sequence)
                after = envelope.sequence
                yield envelope

    async def watch(self, subjects: str = ">") -> AsyncIterator[Envelope]:
        """Everything but replies whose subject matches, from the first step of the iteration on."""
        where = {self._prefix + check_pattern(subjects): "", f"{self._prefix}_.*.{subjects}": ""}
        if subjects.startswith(("*", ">")):
            where = {self._prefix + ">": ""}
        queue: asyncio.Queue[Msg] = asyncio.Queue(_WATCH_BACKLOG)
        async with subscribed(self._link, where, queue):
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
        """Where the log begins and ends now."""
        return await (span_directly(self._journal) if self._monitors else span_of(self._journal))

    async def trim(self, first: int) -> None:
        """Remove all events before this one, and the files of their bodies."""
        await trim(self._journal, first, self._blobs)

    async def read(self, sequences: Sequence[int]) -> list[Envelope]:
        """The events at these places of the log."""
        try:
            messages = await self._journal.read(sequences)
        except LogUnavailable:
            await check_beginning(self._journal, self.run, "a reader", max(min(sequences), 1) - 1)
            raise
        return [
            check_out(unpack(message.data, where=f"sequence {sequence} of the log", sequence=sequence), self._blobs)
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
