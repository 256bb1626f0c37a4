"""Interface of the bus; `memory` and `nats` implement it.

Delivery follows from a message's kind, never from configuration: events are appended to one totally ordered,
durable log per run, work waits in a queue until one worker acknowledges it, requests and telemetry are live.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol, TypeVar

import msgspec

from areal_bus.errors import ClaimLost, CorruptMessage
from areal_bus.message import Event, FrozenMeta, Message, Reply, Request, Telemetry, Work

M = TypeVar("M", bound=Message)
R = TypeVar("R", bound=Reply)

History = Literal["all", "last", "new"]
"""Past events that a consumer receives: all of them, the last event of each kind, or none."""


class Stamp(msgspec.Struct, metaclass=FrozenMeta):
    """Sender, time and cause of a message."""

    id: str
    """Unique per message; a message published again after a restart has the same id and is deduplicated."""
    sender: str
    time: float
    """Seconds since the epoch, by the sender's injected clock."""
    cause: str = ""
    """Id of the message whose handler published this one."""


class Envelope(msgspec.Struct, metaclass=FrozenMeta):
    """A message as sent, logged, shown to monitors and kept in recordings."""

    subject: str
    """Subject without the run's prefix: `trajectory.exported`."""
    id: str
    """Id, derived from sender and cause; a second message with it is discarded."""
    sender: str
    """Name of the actor."""
    time: float
    """Seconds since the epoch."""
    run: str
    """Name of the run."""
    checksum: int
    """CRC-32 of `body`; neither NATS nor the log's file format has a checksum of its own."""
    body: bytes
    """The message in msgpack; empty when it is in the file that `claim` names."""
    cause: str = ""
    """Id of the message that the sender was handling."""
    claim: str = ""
    """Name of a file in the run's blobs folder with a body beyond the inline limit (claim check)."""
    sequence: int = 0
    """Position in the run's log, counted from 1; 0 for messages that are not logged. Set on receipt."""

    @classmethod
    def seal(cls, message: Message, stamp: Stamp, run: str) -> Envelope:
        """Encode a message with its stamp."""
        body = msgspec.msgpack.encode(message.pack())
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
            CorruptMessage: the checksum does not match, or the body is not a `kind`.
            ClaimLost: the body was not loaded from the file that `claim` names.
        """
        if self.claim:
            raise ClaimLost(f"{self.subject} from {self.sender} ({self.id}): its body was not loaded from {self.claim}")
        if zlib.crc32(self.body) != self.checksum:
            raise CorruptMessage(
                f"{self.subject} from {self.sender} ({self.id}): the checksum does not match: it was damaged in the"
                " store or on the network"
            )
        try:
            return msgspec.msgpack.decode(self.body, type=kind)
        except msgspec.MsgspecError as error:
            raise CorruptMessage(
                f"{self.subject} from {self.sender} ({self.id}) is not a {kind.__name__}: {error}"
            ) from error


class LogSpan(msgspec.Struct, metaclass=FrozenMeta):
    """Range of events in a log."""

    first: int
    """Sequence of the oldest event; above 1 if the log was trimmed."""
    last: int
    """Sequence of the newest event; 0 if there is none."""
    bytes: int
    """Bytes in the server's store, without large bodies in the blobs folder."""


class Delivery(Protocol):
    """One message delivered to one consumer."""

    envelope: Envelope
    message: Message
    reply_to: str
    """Subject for the reply to a request; empty otherwise."""
    deliveries: int
    """1 at first; more when an earlier holder of this work item died or released it."""
    replayed: bool
    """True for an event that this durable consumer acknowledged before a restart: fold it, publish nothing."""

    def on_cancelled(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the caller of this request leaves before the last part of the reply.

        The request is addressed to an instance.
        """
        ...

    async def acknowledge(self) -> None:
        """Remove the work item from the queue, or move the consumer's position past this event."""
        ...

    async def extend(self, seconds: float = 0.0) -> None:
        """Renew the lease on a work item, for `seconds` where they are more than the queue's."""
        ...

    async def release(self) -> None:
        """Return a work item to the queue at once, for another worker."""
        ...


class Subscription(Protocol):
    """Deliveries to one consumer, in order; iteration never ends by itself."""

    backlog: int
    """Number of past events delivered before the events published after the subscription began."""

    def __aiter__(self) -> AsyncIterator[Delivery]:
        """Return the subscription itself."""
        ...

    async def __anext__(self) -> Delivery:
        """Wait for the next delivery."""
        ...


class WorkQueue(Protocol):
    """Queue of work items of one kind, shared by all workers."""

    lease_seconds: float
    """Seconds after which work that was neither extended nor acknowledged is redelivered to another worker."""

    async def take(self, limit: int) -> list[Delivery]:
        """Wait until there is work, then take at most `limit` items."""
        ...


class Bus(Protocol):
    """Operations of every bus. A bus belongs to one run."""

    run: str

    async def publish(self, message: Event | Work | Telemetry, stamp: Stamp) -> int:
        """Publish a message; for an event or work item, return once it is durable.

        Returns the event's sequence in the log (the first one's, if this id was published before), else 0.

        Raises:
            LogUnavailable: the server did not accept an event or work item, after all retries.
            MessageTooLarge: the message exceeds the server's limit even with claim check.
        """
        ...

    async def request(self, message: Request[R], stamp: Stamp, *, timeout: float, to: str = "") -> R:
        """Send a request to one responder (or to the instance `to`) and wait for the one reply.

        If the connection breaks meanwhile, the request is sent again under the same id: a responder may receive it
        twice.

        Raises:
            NoResponder: no process serves it; raised at once.
            NoReply: the deadline passed; the message names the subject.
        """
        ...

    def request_stream(
        self, message: Request[R], stamp: Stamp, *, timeout: float, to: str = ""
    ) -> AsyncGenerator[R, None]:
        """Send a request and yield the parts of a streamed reply, in order and without a gap.

        `timeout` bounds the wait for each part.
        `AnswerLost` is raised when a part is lost with a connection.

        Closing it before the last part, or reaching the deadline, cancels the request at the instance `to`.
        """
        ...

    async def reply(self, to: str, message: Reply, stamp: Stamp, *, last: bool = True) -> None:
        """Reply to the request that came with `reply_to`; `last=False` announces more parts."""
        ...

    def events(
        self, *kinds: type[Event], consumer: str, history: History = "all", after: int = 0
    ) -> AbstractAsyncContextManager[Subscription]:
        """Subscribe to events of these kinds in log order, as the durable consumer of this name.

        With history "all" a consumer that restarts receives all events after sequence `after` again, with `replayed`
        true up to its last acknowledged event: state is a fold over events. A consumer with snapshots of its state
        passes the sequence of its snapshot, and counts as having acknowledged all events up to it. "last" begins with
        the last event of each kind, "new" with events published from now on; neither keeps a position. Entering returns
        once no later event can be missed.

        Raises:
            EventsTrimmed: history is "all", and the log begins later than the event after `after`.
        """
        ...

    def work(self, kind: type[Work]) -> AbstractAsyncContextManager[WorkQueue]:
        """Join the queue of work of one kind."""
        ...

    def requests(
        self, *kinds: type[Request[Reply]], group: str, address: str
    ) -> AbstractAsyncContextManager[Subscription]:
        """Serve these requests: those sent to any member of `group`, and those sent to `address` by name."""
        ...

    def telemetry(self, *kinds: type[Telemetry]) -> AbstractAsyncContextManager[Subscription]:
        """Subscribe to telemetry from now on; a slow consumer loses some."""
        ...

    def log(self, *, after: int = 0, follow: bool = False) -> AsyncIterator[Envelope]:
        """Read the run's log in order from the event after sequence `after`; with `follow`, never end.

        With `after` 0 it begins with the oldest event in the log.

        Raises:
            EventsTrimmed: the next event was trimmed, before or during the read.
            CorruptMessage: an event is missing that was not trimmed.
        """
        ...

    async def span(self) -> LogSpan:
        """Returns the current range of the log."""
        ...

    async def trim(self, first: int) -> None:
        """Remove all events before sequence `first` and the files of their large bodies.

        The others keep their sequences.
        The newest event always stays. Ids of removed events stay in the dedup window like all others.

        Raises:
            LogUnavailable: the server refuses.
        """
        ...

    def watch(self, subjects: str = ">") -> AsyncIterator[Envelope]:
        """Yield all messages but replies whose subject matches, from now on, for debugging."""
        ...

    async def read(self, sequences: Sequence[int]) -> list[Envelope]:
        """Returns the log's events at these sequences, in the given order.

        Raises:
            LogUnavailable: one of them is not in the log; the message names it.
            EventsTrimmed: one of them was trimmed.
        """
        ...

    async def put(self, key: str, value: bytes) -> None:
        """Set the value of a key in the run's bucket."""
        ...

    async def get(self, key: str) -> bytes | None:
        """Returns the value of a key, or None."""
        ...

    async def close(self) -> None:
        """Send buffered messages and disconnect."""
        ...
