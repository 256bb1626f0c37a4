"""Records on an actor's tape what it receives, emits, asks and is answered, if it has a tape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_bus.base import Envelope, Stamp
from areal_bus.message import Message

if TYPE_CHECKING:
    from areal_bus.recorded import EntryKind, Tape


class TapeRecorder:
    """Entries of one actor in a run."""

    def __init__(self, tape: Tape | None, run: str) -> None:
        self.tape, self.run = tape, run

    def note(
        self,
        kind: EntryKind,
        cause: str,
        time: float,
        envelope: Envelope | None = None,
        *,
        error: Exception | None = None,
    ) -> None:
        """Write an entry on the tape, if there is one."""
        if self.tape:
            self.tape.note(kind, cause, time, envelope, error)

    def note_message(self, kind: EntryKind, cause: str, time: float, message: Message, stamp: Stamp) -> None:
        """Write an entry with a message on the tape, if there is one."""
        if self.tape:
            self.note(kind, cause, time, Envelope.seal(message, stamp, self.run))

    def local_envelope(self, message: Message, stamp: Stamp) -> Envelope:
        """Returns the envelope of a message that did not come over the bus; only a tape needs its body."""
        if self.tape:
            return Envelope.seal(message, stamp, self.run)
        subject, run = message.subject, self.run
        return Envelope(
            subject=subject, id=stamp.id, sender=stamp.sender, time=stamp.time, run=run, checksum=0, body=b""
        )
