"""Fields of a received message by name, for display."""

from __future__ import annotations

from typing import Any

import msgspec

from areal_actors.messages import Generate, TrajectoryExported
from bus.base import Envelope

PACKED = {kind.subject: kind for kind in (Generate, TrajectoryExported)}
"""Messages that are sent in another form than that of their fields."""


def fields_of(envelope: Envelope) -> Any:
    """Returns the fields of a message, also of an unknown one; token columns are of four-byte values, however they were sent.

    Raises:
        MsgspecError: the body is no message.
    """
    body = envelope.body
    if kind := PACKED.get(envelope.subject):
        body = msgspec.msgpack.encode(msgspec.msgpack.decode(body, type=kind))
    return msgspec.msgpack.decode(body, strict=False)
