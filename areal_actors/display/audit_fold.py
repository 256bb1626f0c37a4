"""The audit as a reader of envelopes, with a state that can be kept and restored where the beginning of a log is trimmed."""

from __future__ import annotations

from typing import Any, ClassVar

from areal_actors.steps.audit import KINDS_BY_SUBJECT, Audit
from bus.base import Envelope
from bus.errors import ClaimLost, CorruptMessage
from bus.message import Message


class AuditFold:
    """Feed it every envelope of a log in order."""

    state_type: ClassVar[Any] = Audit
    state_version: ClassVar[int] = 1

    def __init__(self) -> None:
        self.audit = Audit()

    def snapshot(self) -> Audit:
        """What the events so far have led to, to be encoded before the next one."""
        return self.audit

    def restore(self, state: Audit) -> None:
        """Go on from there."""
        self.audit = state

    def heard(self, envelope: Envelope) -> Message | None:
        """Take in the next event; one that cannot be read is a fault, and the audit goes on behind it."""
        kind = KINDS_BY_SUBJECT.get(envelope.subject)
        try:
            message = envelope.open(kind) if kind else None
        except (CorruptMessage, ClaimLost) as error:
            self.audit.unreadable(envelope.sequence, str(error))
            return None
        self.audit.event(envelope.sequence, message)
        return message
