"""The bus as its users see it; `memory` and `nats` are the two ways to have one.

Delivery follows from a message's kind, never from configuration: events are appended to one totally ordered,
durable log per run, work waits in a queue until one worker acknowledges it, requests and telemetry are live.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol, TypeVar

import msgspec

from bus.errors import ClaimLost, CorruptMessage
from bus.message import Event, FrozenMeta, Message, Reply, Request, Telemetry, Work

M = TypeVar("M", bound=Message)
R = TypeVar("R", bound=Reply)

History = Literal["all", "last", "new"]
"""What an event consumer hears of the past: all of it, the last event of each kind, or nothing."""


class Stamp(msgspec.Struct, metaclass=FrozenMeta):
    """Who says a message, when, and why."""

    id: str
    """Unique per message; the same message said again after a restart has the same id and is kept once."""
    sender: str
    time: float
    """Seconds since the epoch, from the sender's injected clock."""
    cause: str = ""
    """Id of the message whose handling said this one."""


class Envelope(msgspec.Struct, metaclass=FrozenMeta):
    """A message as it stands on the wire and in the log: what a monitor sees and a recording keeps."""

    subject: str
    """Without the run's prefix: `trajectory.exported`."""
    id: str
    sender: str
    time: float
    run: str
    checksum: int
    """CRC-32 of `body`; neither the wire nor the log's file format carries one of its own."""
    body: bytes
    """The message in msgpack; empty when `claim` says where it lies."""
    cause: str = ""
    claim: str = ""
    """Name of the file, in the run's blobs folder, that holds a body beyond the inline limit (claim check)."""
    sequence: int = 0
    """Position in the run's log, counted from 1; 0 for what is not logged. Set on receipt."""

    @classmethod
    def seal(cls, message: Message, stamp: Stamp, run: str) -> Envelope:
        """Encode a message under its stamp."""
        body = msgspec.msgpack.encode(message)
        return cls(
            subject=message.subject,
            id=stamp.id,
            sender=stamp.sender,
            time=stamp.time,
            cause=stamp.cause,
            run=run,
            checksum=zlib.crc32(body),
            body=body,
        )

    def open(self, kind: type[M]) -> M:
        """Decode the message.

        Raises:
            CorruptMessage: the checksum does not hold, or the body is not a `kind`.
            ClaimLost: the body still lies in the file that `claim` names.
        """
        if self.claim:
            raise ClaimLost(f"{self.subject} from {self.sender} ({self.id}): its body was not fetched from {self.claim}")
        if zlib.crc32(self.body) != self.checksum:
            raise CorruptMessage(
                f"{self.subject} from {self.sender} ({self.id}): the checksum does not hold; the store or the network damaged it"
            )
        try:
            return msgspec.msgpack.decode(self.body, type=kind)
        except msgspec.MsgspecError as error:
            raise CorruptMessage(f"{self.subject} from {self.sender} ({self.id}) is not a {kind.__name__}: {error}") from error


class LogSpan(msgspec.Struct, metaclass=FrozenMeta):
    """What a log has of all events of its run."""

    first: int
    """Sequence of the oldest event that it has; more than 1 where the beginning was trimmed."""
    last: int
    """Sequence of the newest event; 0 while there is none."""
    bytes: int
    """What they take in the server's store, large bodies that lie beside it not counted."""


class Delivery(Protocol):
    """One message handed to one consumer."""

    envelope: Envelope
    message: Message
    reply_to: str
    """Where the answer to a request goes; empty otherwise."""
    deliveries: int
    """1 at first; more when an earlier holder of this work died or gave it back."""
    replayed: bool
    """True for an event that this durable consumer acknowledged in an earlier life: fold it, say nothing."""

    def when_abandoned(self, left: Callable[[], object]) -> None:
        """Have `left` called when whoever asked this question by the instance's name stops listening before its last part."""
        ...

    async def acknowledge(self) -> None:
        """Done: work leaves the queue, an event consumer's position moves past this event."""
        ...

    async def extend(self) -> None:
        """Still working: renew the lease on a work item."""
        ...

    async def release(self) -> None:
        """Give a work item back at once, for somebody else to take."""
        ...


class Hearing(Protocol):
    """What a listener is given, in order; it never ends by itself."""

    earlier: int
    """Events that had been said when the listening began: after so many deliveries the listener knows the past."""

    def __aiter__(self) -> AsyncIterator[Delivery]:
        """Go on with the next."""
        ...

    async def __anext__(self) -> Delivery:
        """Wait for the next."""
        ...


class WorkQueue(Protocol):
    """This worker's share of the work of one kind."""

    lease_seconds: float
    """Work not extended or acknowledged for this long is handed to somebody else."""

    async def take(self, limit: int) -> list[Delivery]:
        """Wait until there is work, then take at most `limit` items."""
        ...


class Bus(Protocol):
    """What every bus can do. A bus belongs to one run."""

    run: str

    async def publish(self, message: Event | Work | Telemetry, stamp: Stamp) -> int:
        """Send a message; for an event or work, return once it is durable.

        Returns the event's sequence in the log (that of the first, if this id was said before), else 0.

        Raises:
            LogUnavailable: the server did not accept an event or work, after retries.
            MessageTooLarge: beyond the server's limit even by claim check.
        """
        ...

    async def request(self, message: Request[R], stamp: Stamp, *, timeout: float, to: str = "") -> R:
        """Ask whoever serves this question (or the instance called `to`) and wait for the one answer.

        When the connection breaks meanwhile, the question is asked again under the same id: whoever serves it may be asked twice.

        Raises:
            NoResponder: nobody serves it, known at once.
            NoReply: the deadline passed; the message names the subject.
        """
        ...

    def request_stream(self, message: Request[R], stamp: Stamp, *, timeout: float, to: str = "") -> AsyncGenerator[R, None]:
        """Ask, and yield the parts of a streamed answer, in order and without a gap; `timeout` bounds the wait for each part.

        `AnswerLost` is raised when a part is lost with a connection.

        Closing it before the last part, or running into the deadline, tells the instance called `to` that nobody listens.
        """
        ...

    async def reply(self, to: str, message: Reply, stamp: Stamp, *, last: bool = True) -> None:
        """Answer the request that came with `reply_to`; `last=False` announces more parts."""
        ...

    def events(self, *kinds: type[Event], consumer: str, history: History = "all", after: int = 0) -> AbstractAsyncContextManager[Hearing]:
        """Hear events of these kinds in log order, as the durable consumer of this name.

        With history "all" a consumer that comes back hears everything again from the event after sequence `after`, with
        `replayed` true up to its last acknowledged event: state is a fold over events. A consumer that keeps snapshots of its
        state names the sequence of its snapshot, and counts as having acknowledged everything up to there. "last" begins with
        the last event of each kind, "new" with what is said from now on. Entering returns only when nothing said afterwards
        can be missed.

        Raises:
            EventsTrimmed: history "all" is wanted, and the log begins later than the event after `after`.
        """
        ...

    def work(self, kind: type[Work]) -> AbstractAsyncContextManager[WorkQueue]:
        """Take part in the work of one kind."""
        ...

    def requests(self, *kinds: type[Request[Reply]], group: str, address: str) -> AbstractAsyncContextManager[Hearing]:
        """Serve these questions: those asked of anybody in `group`, and those asked of `address` by name."""
        ...

    def telemetry(self, *kinds: type[Telemetry]) -> AbstractAsyncContextManager[Hearing]:
        """Hear telemetry from now on; a slow listener loses some."""
        ...

    def log(self, *, after: int = 0, follow: bool = False) -> AsyncIterator[Envelope]:
        """Read the run's log in order from the event after sequence `after`; with `follow`, never end.

        With `after` 0 it begins with the oldest event that there is.

        Raises:
            EventsTrimmed: the event after `after` was trimmed, before the reading or in the middle of it.
            CorruptMessage: an event is missing that was not trimmed.
        """
        ...

    async def span(self) -> LogSpan:
        """Where the log begins and ends now."""
        ...

    async def trim(self, first: int) -> None:
        """Remove all events before sequence `first`, and the files of their large bodies; the others keep their sequences.

        The newest event always stays. Ids of removed messages are still recognised for as long as those of others.

        Raises:
            LogUnavailable: the server refuses.
        """
        ...

    def watch(self, subjects: str = ">") -> AsyncIterator[Envelope]:
        """Everything on the wire whose subject matches, of every kind but replies, from now on: the debugger's view."""
        ...

    async def read(self, sequences: Sequence[int]) -> list[Envelope]:
        """The log's events at these sequences, in the given order.

        Raises:
            LogUnavailable: one of them is not in the log; the message names it.
            EventsTrimmed: it was, and has been trimmed.
        """
        ...

    async def put(self, key: str, value: bytes) -> None:
        """Keep a value under a key of the run's bucket, replacing the last one."""
        ...

    async def get(self, key: str) -> bytes | None:
        """The value under a key, or None."""
        ...

    async def close(self) -> None:
        """Deliver what is buffered and leave."""
        ...
