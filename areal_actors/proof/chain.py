"""The hash chain of a log: its head depends on every byte of every event before it, in their order."""

from __future__ import annotations

from hashlib import sha256

import msgspec

from areal_bus.base import Envelope

START = sha256(b"areal-actors log chain 1").hexdigest()


class LogChain:
    """A chain that is extended event by event."""

    def __init__(self, head: str = START, sequence: int = 0, first: int = 1) -> None:
        """Continue a chain that ends with the event `sequence`; by default begin one."""
        self.head, self.sequence, self.first = head, sequence, first

    def add(self, envelope: Envelope) -> None:
        """Add the next event."""
        if self.sequence == 0:
            self.first = envelope.sequence
        stamp = (envelope.sequence, envelope.subject, envelope.id, envelope.sender, envelope.time, envelope.cause)
        digest = sha256(bytes.fromhex(self.head))
        digest.update(msgspec.msgpack.encode((*stamp, envelope.body)))
        self.head, self.sequence = digest.hexdigest(), envelope.sequence
