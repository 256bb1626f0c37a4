"""What both buses hand to listeners, and how far a consumer of events has come."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from bus.base import Delivery, Envelope
from bus.errors import CorruptMessage
from bus.message import Message

TELEMETRY_BACKLOG = 4096
"""What a telemetry listener may leave unread before it loses the oldest."""

Item = TypeVar("Item")
Kinds = Mapping[str, type[Message]]
"""The messages that a listener can open, by subject."""

_logger = logging.getLogger(__name__)


class Received:
    """A delivery that owes the bus nothing: requests and telemetry; events and work build on it."""

    __slots__ = ("__weakref__", "_left", "deliveries", "envelope", "message", "replayed", "reply_to")

    def __init__(self, envelope: Envelope, message: Message, *, reply_to: str = "", deliveries: int = 1, replayed: bool = False) -> None:
        self.envelope = envelope
        self.message = message
        self.reply_to = reply_to
        self.deliveries = deliveries
        self.replayed = replayed
        self._left: Callable[[], object] | None = None

    def when_abandoned(self, left: Callable[[], object]) -> None:
        """Have `left` called when the asker goes."""
        self._left = left

    def abandoned(self) -> None:
        """The asker is gone."""
        if self._left is not None:
            self._left()

    async def acknowledge(self) -> None:
        """Nothing to settle."""

    async def extend(self) -> None:
        """Nothing to keep."""

    async def release(self) -> None:
        """Nothing to give back."""


class Position:
    """How far a consumer has come: the last event of the longest acknowledged prefix of what it was given.

    Events may be acknowledged in any order. One that is not acknowledged holds the position, so that a consumer that
    comes back is given it, and all after it, as if for the first time: something may be said twice but nothing is
    missed.
    """

    def __init__(self, acknowledged: int, moved: Callable[[int], None]) -> None:
        self.acknowledged = acknowledged
        self.earlier_life = acknowledged
        """Where the consumer stood when it entered."""
        self._moved = moved
        self._given: deque[int] = deque()
        self._done: set[int] = set()

    def give(self, sequence: int) -> bool:
        """Note that an event is handed out; returns whether an earlier life acknowledged it."""
        if sequence <= self.earlier_life:
            return True
        self._given.append(sequence)
        return False

    def acknowledge(self, sequence: int) -> None:
        """The event is dealt with."""
        if sequence <= self.acknowledged:
            return
        self._done.add(sequence)
        before = self.acknowledged
        while self._given and self._given[0] in self._done:
            self.acknowledged = self._given.popleft()
            self._done.discard(self.acknowledged)
        if self.acknowledged != before:
            self._moved(self.acknowledged)


class ReceivedEvent(Received):
    """An event, and the position that moves past it."""

    __slots__ = ("_position",)

    def __init__(self, envelope: Envelope, message: Message, position: Position) -> None:
        super().__init__(envelope, message, replayed=position.give(envelope.sequence))
        self._position = position

    async def acknowledge(self) -> None:
        """Move the consumer's position past this event, as soon as all before it are acknowledged."""
        self._position.acknowledge(self.envelope.sequence)


class Deliveries(Generic[Item]):
    """What a listener iterates over; messages are decoded in the listener's own task, when it asks for them."""

    def __init__(self, take: Callable[[], Awaitable[Item]], hand_over: Callable[[Item], Delivery | None], *, earlier: int = 0) -> None:
        self.earlier = earlier
        self._take = take
        self._hand_over = hand_over

    def __aiter__(self) -> Deliveries[Item]:
        return self

    async def __anext__(self) -> Delivery:
        while True:
            delivery = self._hand_over(await self._take())
            if delivery is not None:
                return delivery


def open_event(envelope: Envelope, kinds: Kinds, position: Position) -> Delivery:
    """Hand an event over; a damaged one is an error here, for state must not be folded over a gap."""
    return ReceivedEvent(envelope, envelope.open(kinds[envelope.subject]), position)


class Asked:
    """The questions that somebody serves, so that those can be ended whose asker leaves before the last part."""

    def __init__(self) -> None:
        self._open: WeakValueDictionary[str, Received] = WeakValueDictionary()
        self._left: deque[str] = deque(maxlen=TELEMETRY_BACKLOG)
        """Askers who left before their question was taken up."""

    def took(self, delivery: Received | None) -> Received | None:
        """Remember a question for as long as somebody holds it; None for one whose asker has left."""
        if delivery is None or delivery.reply_to in self._left:
            return None
        self._open[delivery.reply_to] = delivery
        return delivery

    def left(self, reply_to: str) -> None:
        """The asker that was to be answered there is gone."""
        if (delivery := self._open.pop(reply_to, None)) is not None:
            delivery.abandoned()
        else:
            self._left.append(reply_to)


def open_live(envelope: Envelope, kinds: Kinds, reply_to: str = "") -> Received | None:
    """Hand a request or telemetry over, or None for a damaged one: a stranger's mistake must not end its reader."""
    try:
        return Received(envelope, envelope.open(kinds[envelope.subject]), reply_to=reply_to)
    except CorruptMessage as error:
        _logger.warning("ignored: %s", error)
        return None


def put_or_drop_oldest(queue: asyncio.Queue[Item], item: Item) -> bool:
    """Put an item into a bounded queue; returns whether the oldest had to go for it."""
    full = queue.full()
    if full:
        queue.get_nowait()
    queue.put_nowait(item)
    return full


def by_subject(*kinds: type[Message]) -> Kinds:
    """The kinds of message that somebody listens to."""
    return {kind.subject: kind for kind in kinds}


def trimmed(reader: str, wanted: int, first: int, run: str) -> str:
    """What to say to a reader of events that are no longer there."""
    return (
        f"{reader} wants event {wanted} of run {run}, and the log begins at event {first}: earlier events were trimmed, since no kept "
        "checkpoint needs them; begin with a snapshot (the run folder's snapshots) or with the first event that there is"
    )
