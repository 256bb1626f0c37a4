"""Work queues over JetStream: one durable consumer per kind, shared by all workers.

Items are not prefetched, since a lease begins when the server delivers an item.

A worker that renews a lease too late may receive the item again while it still processes it. Such a redelivery is not
passed on: it renews the lease, and the item is settled by its newest delivery.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextlib import suppress
from typing import Final

import msgspec
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from areal_bus.base import Delivery, Envelope
from areal_bus.claims import check_out
from areal_bus.delivery import Received
from areal_bus.errors import BusError, LogUnavailable, ServerUnavailable
from areal_bus.message import Message, Work
from areal_bus.nats_client import status
from areal_bus.nats_connection import Connection
from areal_bus.nats_reader import DeliveryInfo
from areal_bus.nats_streams import Json, Streams
from areal_bus.payload import unpack
from areal_bus.subjects import work_consumer

_WAIT_SECONDS: Final = 30.0
"""Seconds that one request waits at the server for work."""
_CLUSTER_WAIT_SECONDS: Final = 5.0
"""The same in a cluster, where a consumer may end unnoticed with another server than the connected one."""
_GRACE_SECONDS: Final = 1.0
_ACKNOWLEDGED_LIMIT: Final = 4096
"""Number of acknowledged items kept, so that a redelivery that crossed its acknowledgement is acknowledged again and
not repeated."""


class NatsWorkQueue:
    """One worker's view of the queue of work of one kind."""

    def __init__(self, streams: Streams, kind: type[Work], lease_seconds: float) -> None:
        self.lease_seconds = lease_seconds
        self._streams = streams
        self.connection = streams.connection
        self._kind = kind
        self._consumer = work_consumer(kind.subject)
        self._next_address = f"$JS.API.CONSUMER.MSG.NEXT.{streams.queue}.{self._consumer}"
        self._address = ""
        self._subscription: NatsSubscription | None = None
        self._taking = asyncio.Lock()
        self._received: deque[Msg] = deque()
        self._leased = LeasedItems()
        self._repeated = 0
        """Number of redeliveries of items in progress, each of which counts against a request's batch."""
        self._is_taking = False
        """True while `take` waits for items."""
        self._changed = asyncio.Event()
        self._requests = 0
        self._open_request = ""
        """Reply subject of the request that waits at the server for an item."""
        self._answers: dict[str, str] = {}
        """Status with which the server ended a request, by its reply subject."""

    async def open(self) -> None:
        """Join the queue.

        Raises:
            LogUnavailable: the run has no work queue.
        """
        self._address = self.connection.new_address()
        self._subscription = await self.connection.subscribe(self._address + ".*", self._on_message)
        await self._ensure_consumer()

    async def _ensure_consumer(self) -> None:
        subject = self._streams.prefix + self._kind.subject
        config: Json = {
            "durable_name": self._consumer,
            "ack_policy": "explicit",
            "ack_wait": int(self.lease_seconds * 1_000_000_000),
            "max_deliver": -1,
            "max_ack_pending": -1,
            "filter_subject": subject,
        }
        await self._streams.api(
            f"CONSUMER.CREATE.{self._streams.queue}.{self._consumer}.{subject}",
            {"stream_name": self._streams.queue, "config": config},
        )

    async def take(self, limit: int) -> list[Delivery]:
        """Wait until there is work, then take at most `limit` items.

        Raises:
            ServerUnavailable: the connection is lost permanently.
            CorruptMessage: an item is damaged.
        """
        async with self._taking:
            self._is_taking = True
            try:
                with self.connection.on_reconnect(self._forget_request):
                    await self._wait_for_one()
                    more_available = DeliveryInfo(self._received[-1].reply).pending > 0
                    if more_available and len(self._received) < limit:
                        await self._take_available(limit - len(self._received))
            finally:
                self._is_taking = False
        return [self._open(self._received.popleft()) for _ in range(min(limit, len(self._received)))]

    async def _wait_for_one(self) -> None:
        refused, seconds = 0, _CLUSTER_WAIT_SECONDS if self.connection.in_cluster else _WAIT_SECONDS
        while not self._received:
            if self.connection.lost:
                raise ServerUnavailable(self.connection.lost)
            self._changed.clear()
            if not self._open_request:
                self._open_request = await self._request({"batch": 1, "expires": int(seconds * 1_000_000_000)})
            try:
                async with asyncio.timeout(seconds + _GRACE_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                self._open_request = ""
            code = self._answers.pop(self._open_request, "")
            if code:
                self._open_request = ""
            if code not in ("", "404", "408"):
                refused += 1
                await self._recreate_consumer(refused)

    async def _recreate_consumer(self, refused: int) -> None:
        """Create the consumer again after a pause: it does not exist, or the server is still starting."""
        await asyncio.sleep(min(0.05 * 2**refused, 1.0))
        with suppress(LogUnavailable):
            await self._ensure_consumer()

    async def _take_available(self, count: int) -> None:
        """Add up to `count` items that are available now."""
        enough = len(self._received) + self._repeated + count
        address = await self._request({"batch": count, "no_wait": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_SECONDS):
                while len(self._received) + self._repeated < enough and address not in self._answers:
                    self._changed.clear()
                    await self._changed.wait()
        self._answers.pop(address, None)

    async def _request(self, options: Json) -> str:
        self._requests += 1
        address = f"{self._address}.{self._requests}"
        with suppress(ServerUnavailable):
            await self.connection.publish(self._next_address, msgspec.json.encode(options), reply=address)
        return address

    def _forget_request(self) -> None:
        """Drop the open request, which the server lost with the old connection."""
        self._open_request = ""
        self._changed.set()

    async def _on_message(self, message: Msg) -> None:
        code = status(message)
        if code:
            self._answers[message.subject] = code
        elif verdict := self._leased.verdict_of_redelivery(message.reply):
            self._repeated += 1
            self._open_request = ""
            await settle(self.connection, message.reply, verdict)
        elif self._is_taking:
            self._received.append(message)
            self._open_request = ""
        else:
            self._open_request = ""
            await settle(self.connection, message.reply, b"-NAK")
        self._changed.set()

    def _open(self, message: Msg) -> Delivery:
        info = DeliveryInfo(message.reply)
        envelope = check_out(unpack(message.data, where=f"work on {message.subject}"), self._streams.blobs)
        work = envelope.open(self._kind)
        self._leased.add(info.sequence, message.reply)
        return NatsWork(self, self._leased, envelope, work, info)

    async def close(self) -> None:
        """Leave the queue and release all leased items at once."""
        if self._subscription is not None:
            await self.connection.unsubscribe(self._subscription)
        with suppress(BusError):
            for address in [*self._leased.reply_subjects.values(), *(message.reply for message in self._received)]:
                await settle(self.connection, address, b"-NAK")


class LeasedItems:
    """Items that a worker has leased, by sequence in the queue's stream, and those it acknowledged last."""

    def __init__(self) -> None:
        self.reply_subjects: dict[int, str] = {}
        """Reply subject of the newest delivery of each item, by which it is settled."""
        self._acknowledged: OrderedDict[int, None] = OrderedDict()

    def add(self, sequence: int, reply_subject: str) -> None:
        """Add an item that the worker begins with."""
        self.reply_subjects[sequence] = reply_subject

    def verdict_of_redelivery(self, reply_subject: str) -> bytes:
        """Returns the verdict for a redelivery of an item that the worker has leased or acknowledged.

        Empty for other items.
        """
        sequence = DeliveryInfo(reply_subject).sequence
        if sequence in self.reply_subjects:
            self.reply_subjects[sequence] = reply_subject
            return b"+WPI"
        return b"+ACK" if sequence in self._acknowledged else b""

    def release(self, sequence: int) -> str:
        """Remove an item; returns the reply subject to release it with, empty if it is not leased."""
        return self.reply_subjects.pop(sequence, "")

    def acknowledge(self, sequence: int) -> str:
        """Mark an item as done; returns the reply subject to acknowledge it with, empty if it was done before."""
        self._acknowledged[sequence] = None
        while len(self._acknowledged) > _ACKNOWLEDGED_LIMIT:
            self._acknowledged.popitem(last=False)
        return self.reply_subjects.pop(sequence, "")


class NatsWork(Received):
    """A work item leased by a worker."""

    __slots__ = ("_leased", "_queue", "_sequence")

    def __init__(
        self, queue: NatsWorkQueue, leased: LeasedItems, envelope: Envelope, message: Message, info: DeliveryInfo
    ) -> None:
        super().__init__(envelope, message, deliveries=info.deliveries)
        self._sequence = info.sequence
        self._queue = queue
        self._leased = leased

    async def acknowledge(self) -> None:
        """Remove the item from the queue; if the acknowledgement is lost, the item is delivered once more."""
        await self._settle(self._leased.acknowledge(self._sequence), b"+ACK")

    async def extend(self, seconds: float = 0.0) -> None:
        """Renew the lease.

        The server's renewal is for the queue's time; for a longer one, the item is to be delivered again only then.
        """
        longer = seconds > self._queue.lease_seconds
        verdict = b'-NAK {"delay":%d}' % int(seconds * 1_000_000_000) if longer else b"+WPI"
        await self._settle(self._leased.reply_subjects.get(self._sequence, ""), verdict)

    async def release(self) -> None:
        """Release the item."""
        await self._settle(self._leased.release(self._sequence), b"-NAK")

    async def _settle(self, address: str, verdict: bytes) -> None:
        if address:
            await settle(self._queue.connection, address, verdict)


async def settle(connection: Connection, address: str, verdict: bytes) -> None:
    """Send the verdict on a work item to the server."""
    await connection.publish(address, verdict)
