"""Fields of a received message by name, for display."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from areal_actors.messages import KINDS
from areal_bus.base import Envelope
from areal_bus.message import Message

PACKED = {kind.subject: kind for kind in KINDS if kind.pack is not Message.pack}
"""Messages that are sent in another form than that of their fields."""


def fields_of(envelope: Envelope) -> Any:
    """Returns the fields of a message, also of an unknown or an invalid one.

    Token columns are of four-byte values, however they were sent.

    Raises:
        DecodeError: the body is no message.
    """
    body = envelope.body
    if kind := PACKED.get(envelope.subject):
        with suppress(msgspec.ValidationError):
            body = msgspec.msgpack.encode(msgspec.msgpack.decode(body, type=kind))
    return msgspec.msgpack.decode(body, strict=False)
