"""Deterministic message ids, derived from sender and cause, by which a message published again is deduplicated."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from areal_bus.base import Envelope
from areal_bus.message import Event, Message, MonitorEvent, Work

DURABLE = (Event, Work)


def message_id(*parts: object) -> str:
    """Returns an id that is a hash of its parts."""
    text = parts[0] if len(parts) == 1 and isinstance(parts[0], str) else "|".join(map(str, parts))
    return blake2b(text.encode(), digest_size=10).hexdigest()


def with_new_id(envelope: Envelope, again: str) -> Envelope:
    """Returns the envelope with another id, so that what is emitted for it is no duplicate of earlier messages."""
    return msgspec.structs.replace(envelope, id=f"{envelope.id}~{again}")


class HandlingIds:
    """Ids of the messages that an actor emits while it handles one message.

    Events and work are counted separately from other messages and from reports: when the message is handled again after
    a failure, there may be a different number of these in between, and the event after a report must not be taken for
    the report.
    """

    def __init__(self, instance: str, cause: str) -> None:
        self._sender = f"{instance}|{cause}"
        self._emitted: dict[tuple[str, ...], int] = {}

    def following(self, message: Message) -> str:
        """Returns the id of the next emitted message."""
        series = (
            ("report",) if isinstance(message, MonitorEvent) else () if isinstance(message, DURABLE) else ("passing",)
        )
        number = self._emitted[series] = self._emitted.get(series, 0) + 1
        return message_id("|".join((self._sender, *series, str(number))))
