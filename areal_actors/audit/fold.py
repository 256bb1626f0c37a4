"""The audit as a fold over envelopes, with snapshots for logs whose beginning was trimmed."""

from __future__ import annotations

from typing import Any, ClassVar

from areal_actors.audit.audit import KINDS_BY_SUBJECT, Audit
from areal_bus.base import Envelope
from areal_bus.errors import ClaimLost, CorruptMessage
from areal_bus.message import Message


class AuditFold:
    """Feed it every envelope of a log in order."""

    state_type: ClassVar[Any] = Audit
    state_version: ClassVar[int] = 1

    def __init__(self) -> None:
        self.audit = Audit()

    def snapshot(self) -> Audit:
        """Returns the state, to be encoded before the next event."""
        return self.audit

    def restore(self, state: Audit) -> None:
        """Continue from a snapshot."""
        self.audit = state

    def receive(self, envelope: Envelope, message: Message | None = None) -> Message | None:
        """Fold the next event; an unreadable one is a fault, and the audit continues after it.

        `message`: what the envelope has, if it is decoded.
        """
        kind = None if message is not None else KINDS_BY_SUBJECT.get(envelope.subject)
        try:
            message = envelope.open(kind) if kind else message
        except (CorruptMessage, ClaimLost) as error:
            self.audit.unreadable(envelope.sequence, str(error))
            return None
        self.audit.event(envelope.sequence, message)
        return message
