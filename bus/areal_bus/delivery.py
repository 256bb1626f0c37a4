"""Deliveries of both buses, and the position of an event consumer."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from areal_bus.base import Delivery, Envelope
from areal_bus.errors import CorruptMessage
from areal_bus.message import Message

TELEMETRY_BACKLOG = 4096
"""Telemetry messages that a consumer may leave unread before it loses the oldest."""

Item = TypeVar("Item")
Kinds = Mapping[str, type[Message]]
"""Message types of a subscription, by subject."""

_logger = logging.getLogger(__name__)


class Received:
    """A delivery that needs no acknowledgement: a request or telemetry; base of events and work."""

    __slots__ = ("__weakref__", "_on_cancelled", "deliveries", "envelope", "message", "replayed", "reply_to")

    def __init__(
        self, envelope: Envelope, message: Message, *, reply_to: str = "", deliveries: int = 1, replayed: bool = False
    ) -> None:
        self.envelope = envelope
        self.message = message
        self.reply_to = reply_to
        self.deliveries = deliveries
        self.replayed = replayed
        self._on_cancelled: Callable[[], object] | None = None

    def on_cancelled(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the caller leaves."""
        self._on_cancelled = callback

    def cancel(self) -> None:
        """Run the callback: the caller has left."""
        if self._on_cancelled is not None:
            self._on_cancelled()

    async def acknowledge(self) -> None:
        """Do nothing."""

    async def extend(self, seconds: float = 0.0) -> None:
        """Do nothing."""

    async def release(self) -> None:
        """Do nothing."""


class Position:
    """Position of a consumer: the last event of the longest acknowledged prefix of its deliveries.

    Events may be acknowledged in any order. One that is not acknowledged holds the position, so that after a restart it
    and all later events are redelivered: delivery is at least once.
    """

    def __init__(self, acknowledged: int, moved: Callable[[int], None]) -> None:
        self.acknowledged = acknowledged
        self.initial = acknowledged
        """Position when the subscription began."""
        self._moved = moved
        self._delivered: deque[int] = deque()
        self._done: set[int] = set()

    def deliver(self, sequence: int) -> bool:
        """Record the delivery of an event; returns True if it was acknowledged before the subscription began."""
        if sequence <= self.initial:
            return True
        self._delivered.append(sequence)
        return False

    def acknowledge(self, sequence: int) -> None:
        """Record that the event was handled."""
        if sequence <= self.acknowledged:
            return
        self._done.add(sequence)
        before = self.acknowledged
        while self._delivered and self._delivered[0] in self._done:
            self.acknowledged = self._delivered.popleft()
            self._done.discard(self.acknowledged)
        if self.acknowledged != before:
            self._moved(self.acknowledged)


class ReceivedEvent(Received):
    """An event, whose acknowledgement moves its consumer's position."""

    __slots__ = ("_position",)

    def __init__(self, envelope: Envelope, message: Message, position: Position) -> None:
        super().__init__(envelope, message, replayed=position.deliver(envelope.sequence))
        self._position = position

    async def acknowledge(self) -> None:
        """Move the consumer's position past this event once all earlier ones are acknowledged."""
        self._position.acknowledge(self.envelope.sequence)


class Deliveries(Generic[Item]):
    """Iterator over the deliveries of a subscription; messages are decoded in the consumer's task, on demand."""

    def __init__(
        self, take: Callable[[], Awaitable[Item]], open_item: Callable[[Item], Delivery | None], *, backlog: int = 0
    ) -> None:
        self.backlog = backlog
        self._take = take
        self._open_item = open_item

    def __aiter__(self) -> Deliveries[Item]:
        return self

    async def __anext__(self) -> Delivery:
        while True:
            delivery = self._open_item(await self._take())
            if delivery is not None:
                return delivery


def open_event(envelope: Envelope, kinds: Kinds, position: Position) -> Delivery:
    """Decode an event; a damaged one is an error, since state must not be folded over a gap."""
    return ReceivedEvent(envelope, envelope.open(kinds[envelope.subject]), position)


class OpenRequests:
    """Requests being served, so that one whose caller leaves before the last part can be cancelled."""

    def __init__(self) -> None:
        self._open: WeakValueDictionary[str, Received] = WeakValueDictionary()
        self._cancelled: deque[str] = deque(maxlen=TELEMETRY_BACKLOG)
        """Reply subjects of requests cancelled before they were delivered."""

    def add(self, delivery: Received | None) -> Received | None:
        """Track a request while it is referenced; returns None for one that was cancelled."""
        if delivery is None or delivery.reply_to in self._cancelled:
            return None
        self._open[delivery.reply_to] = delivery
        return delivery

    def cancel(self, reply_to: str) -> None:
        """Cancel the request with this reply subject."""
        if (delivery := self._open.pop(reply_to, None)) is not None:
            delivery.cancel()
        else:
            self._cancelled.append(reply_to)


def open_live(envelope: Envelope, kinds: Kinds, reply_to: str = "") -> Received | None:
    """Decode a request or telemetry; returns None for a damaged one, which must not stop its consumer."""
    try:
        return Received(envelope, envelope.open(kinds[envelope.subject]), reply_to=reply_to)
    except CorruptMessage as error:
        _logger.warning("ignored a damaged message: %s", error)
        return None


def put_or_drop_oldest(queue: asyncio.Queue[Item], item: Item) -> bool:
    """Put an item into a bounded queue; returns True if the oldest was dropped."""
    full = queue.full()
    if full:
        queue.get_nowait()
    queue.put_nowait(item)
    return full


def by_subject(*kinds: type[Message]) -> Kinds:
    """Returns these message types by subject."""
    return {kind.subject: kind for kind in kinds}


def trimmed_error(reader: str, wanted: int, first: int, run: str) -> str:
    """Returns the error text for a reader of trimmed events."""
    return (
        f"{reader} requires event {wanted} of run {run}, but the log begins at event {first}: earlier events were"
        " trimmed, since no kept checkpoint needs them; begin with a snapshot (the run folder's snapshots) or with the"
        " first event in the log"
    )
