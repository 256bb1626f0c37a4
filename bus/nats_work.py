"""Work over JetStream: one durable consumer per kind, shared by all workers.

Nothing is fetched ahead of its taking, for a lease begins when the server hands an item out.

A worker that was kept from renewing a lease in time is sent the item again while it is still at work on it. Such a
redelivery is not handed over: it renews the lease, and the item is settled by its newest delivery.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextlib import suppress
from typing import Final

import msgspec
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from bus.base import Delivery, Envelope
from bus.claims import check_out
from bus.delivery import Received
from bus.errors import BusError, LogUnavailable, ServerUnavailable
from bus.message import Message, Work
from bus.nats_journal import Journal, Json
from bus.nats_link import Link, status
from bus.nats_reader import Place, unpack
from bus.subjects import work_consumer

_WAIT_SECONDS: Final = 5.0
"""How long one request waits for work at the server."""
_GRACE_SECONDS: Final = 1.0
_REMEMBERED: Final = 4096
"""Acknowledged items, so that a redelivery which crossed its acknowledgement on the way is acknowledged again and not done again."""


class NatsWorkQueue:
    """One worker's share of the work of one kind."""

    def __init__(self, journal: Journal, kind: type[Work], lease_seconds: float) -> None:
        self.lease_seconds = lease_seconds
        self._journal = journal
        self._link = journal.link
        self._kind = kind
        self._consumer = work_consumer(kind.subject)
        self._next_address = f"$JS.API.CONSUMER.MSG.NEXT.{journal.queue}.{self._consumer}"
        self._address = ""
        self._subscription: Subscription | None = None
        self._taking = asyncio.Lock()
        self._arrived: deque[Msg] = deque()
        self._held = Held()
        self._repeated = 0
        """Redeliveries of items in hand, which have used up a place of a request."""
        self._wanted = False
        """Whether somebody waits for what arrives."""
        self._news = asyncio.Event()
        self._requests = 0
        self._open_request = ""
        """Address of the request that waits at the server for an item."""
        self._answers: dict[str, str] = {}
        """How the server ended other requests, by their address."""

    async def open(self) -> None:
        """Take part from now on.

        Raises:
            LogUnavailable: the run has no work queue.
        """
        self._address = self._link.new_address()
        self._subscription = await self._link.subscribe(self._address + ".*", self._arrive)
        await self._ensure_consumer()

    async def _ensure_consumer(self) -> None:
        subject = self._journal.prefix + self._kind.subject
        config: Json = {
            "durable_name": self._consumer,
            "ack_policy": "explicit",
            "ack_wait": int(self.lease_seconds * 1_000_000_000),
            "max_deliver": -1,
            "max_ack_pending": -1,
            "filter_subject": subject,
        }
        await self._journal.api(
            f"CONSUMER.CREATE.{self._journal.queue}.{self._consumer}.{subject}",
            {"stream_name": self._journal.queue, "config": config},
        )

    async def take(self, limit: int) -> list[Delivery]:
        """Wait until there is work, then take at most `limit` items.

        Raises:
            ServerUnavailable: the connection is lost for good.
            CorruptMessage: an item is damaged.
        """
        async with self._taking:
            self._wanted = True
            try:
                with self._link.on_return(self._forget_request):
                    await self._wait_for_one()
                    more_wait = Place(self._arrived[-1].reply).pending > 0
                    if more_wait and len(self._arrived) < limit:
                        await self._take_what_waits(limit - len(self._arrived))
            finally:
                self._wanted = False
        return [self._hand_over(self._arrived.popleft()) for _ in range(min(limit, len(self._arrived)))]

    async def _wait_for_one(self) -> None:
        refused = 0
        while not self._arrived:
            if self._link.lost:
                raise ServerUnavailable(self._link.lost)
            self._news.clear()
            if not self._open_request:
                self._open_request = await self._request({"batch": 1, "expires": int(_WAIT_SECONDS * 1_000_000_000)})
            try:
                async with asyncio.timeout(_WAIT_SECONDS + _GRACE_SECONDS):
                    await self._news.wait()
            except TimeoutError:
                self._open_request = ""
            said = self._answers.pop(self._open_request, "")
            if said:
                self._open_request = ""
            if said not in ("", "404", "408"):
                refused += 1
                await self._make_consumer_again(refused)

    async def _make_consumer_again(self, refused: int) -> None:
        """The server knows no such consumer, or is still starting."""
        await asyncio.sleep(min(0.05 * 2**refused, 1.0))
        with suppress(LogUnavailable):
            await self._ensure_consumer()

    async def _take_what_waits(self, count: int) -> None:
        """Add what the server can give at once."""
        enough = len(self._arrived) + self._repeated + count
        address = await self._request({"batch": count, "no_wait": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_SECONDS):
                while len(self._arrived) + self._repeated < enough and address not in self._answers:
                    self._news.clear()
                    await self._news.wait()
        self._answers.pop(address, None)

    async def _request(self, what: Json) -> str:
        self._requests += 1
        address = f"{self._address}.{self._requests}"
        with suppress(ServerUnavailable):
            await self._link.publish(self._next_address, msgspec.json.encode(what), reply=address)
        return address

    def _forget_request(self) -> None:
        """The connection is new, and the server knows of no request."""
        self._open_request = ""
        self._news.set()

    async def _arrive(self, message: Msg) -> None:
        said = status(message)
        if said:
            self._answers[message.subject] = said
        elif verdict := self._held.redelivered(message.reply):
            self._repeated += 1
            self._open_request = ""
            await settle(self._link, message.reply, verdict)
        elif self._wanted:
            self._arrived.append(message)
            self._open_request = ""
        else:
            self._open_request = ""
            await settle(self._link, message.reply, b"-NAK")
        self._news.set()

    def _hand_over(self, message: Msg) -> Delivery:
        place = Place(message.reply)
        envelope = check_out(unpack(message.data, where=f"work on {message.subject}"), self._journal.blobs)
        work = envelope.open(self._kind)
        self._held.take(place.sequence, message.reply)
        return NatsWork(envelope, work, place.deliveries, place.sequence, self._link, self._held)

    async def close(self) -> None:
        """Leave; what is held goes back at once."""
        if self._subscription is not None:
            await self._link.unsubscribe(self._subscription)
        with suppress(BusError):
            for address in [*self._held.addresses.values(), *(message.reply for message in self._arrived)]:
                await settle(self._link, address, b"-NAK")


class Held:
    """The items that a worker has in hand, by their place in the work queue's stream, and those it has acknowledged."""

    def __init__(self) -> None:
        self.addresses: dict[int, str] = {}
        """Where each item is to be settled: that of its newest delivery."""
        self._acknowledged: OrderedDict[int, None] = OrderedDict()

    def take(self, sequence: int, address: str) -> None:
        """The worker begins with an item."""
        self.addresses[sequence] = address

    def redelivered(self, address: str) -> bytes:
        """What to answer to the delivery of an item that the worker has in hand or has done; empty for any other."""
        sequence = Place(address).sequence
        if sequence in self.addresses:
            self.addresses[sequence] = address
            return b"+WPI"
        return b"+ACK" if sequence in self._acknowledged else b""

    def release(self, sequence: int) -> str:
        """The worker gives an item back; returns where that is to be said, empty if it does not have it."""
        return self.addresses.pop(sequence, "")

    def acknowledge(self, sequence: int) -> str:
        """The worker is done with an item; returns where that is to be said, empty if it was done with it before."""
        self._acknowledged[sequence] = None
        while len(self._acknowledged) > _REMEMBERED:
            self._acknowledged.popitem(last=False)
        return self.addresses.pop(sequence, "")


class NatsWork(Received):
    """An item of work in a worker's hands."""

    __slots__ = ("_held", "_link", "_sequence")

    def __init__(self, envelope: Envelope, message: Message, deliveries: int, sequence: int, link: Link, held: Held) -> None:
        super().__init__(envelope, message, deliveries=deliveries)
        self._sequence = sequence
        self._link = link
        self._held = held

    async def acknowledge(self) -> None:
        """Take the item out of the queue; should that get lost, it is handed out once more."""
        await self._settle(self._held.acknowledge(self._sequence), b"+ACK")

    async def extend(self) -> None:
        """Renew the lease."""
        await self._settle(self._held.addresses.get(self._sequence, ""), b"+WPI")

    async def release(self) -> None:
        """Give the item back."""
        await self._settle(self._held.release(self._sequence), b"-NAK")

    async def _settle(self, address: str, verdict: bytes) -> None:
        if address:
            await settle(self._link, address, verdict)


async def settle(link: Link, address: str, verdict: bytes) -> None:
    """Tell the server what became of an item of work."""
    await link.publish(address, verdict)
