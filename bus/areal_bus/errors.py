"""Errors of the bus.

BusError
├── ServerUnavailable    no server at that address, or it refused the connection; at start and while running
│   └── ServerKilled     the server was killed by a signal while it started
├── PermissionDenied     this user of the bus may not publish or subscribe to that subject
├── NoResponder          no process serves this request now
├── NoReply              no reply within the deadline
│   └── AnswerLost       the connection broke before the reply arrived, or a part of the reply is missing
├── MessageTooLarge      a message beyond the server's limit, rejected before it is sent
├── CorruptMessage       a received message does not match its checksum or schema
│   └── LogDamaged       the log has a gap: an event is missing in the server's store
├── ClaimLost            the file with a large message's body cannot be read
├── LogUnavailable       the durable log cannot be opened or written (store, disk, limits)
│   └── EventsTrimmed    a reader requires events that were removed from the beginning of the log
├── CertificateUnusable  the files of a certificate and its key cannot be used
└── RecordingDamaged     a file is no recording, or ends in the middle of an entry
"""


class BusError(Exception):
    """Base of all bus errors; the message contains the remedy."""


class ServerUnavailable(BusError):
    """Raised when the server cannot be started or reached."""


class ServerKilled(ServerUnavailable):
    """Raised when the server is killed by a signal while it starts; another start may succeed."""


class PermissionDenied(BusError):
    """Raised when the server does not let this user publish or subscribe to a subject; `subject` is in lower case."""

    def __init__(self, message: str, subject: str) -> None:
        super().__init__(message)
        self.subject = subject


class NoResponder(BusError):
    """Raised at once when no process serves a request's subject."""


class NoReply(BusError, TimeoutError):
    """Raised when a request's deadline passes without a reply."""


class AnswerLost(NoReply):
    """Raised when the connection broke before the reply arrived, or a part of the reply is missing.

    Send the request again.
    """


class MessageTooLarge(BusError):
    """Raised before sending a message that exceeds the server's limit."""


class CorruptMessage(BusError):
    """Raised when a received message does not match its checksum or schema."""


class LogDamaged(CorruptMessage):
    """Raised when an event is missing from the log although the server counts it."""


class ClaimLost(BusError):
    """Raised when the file with a received message's body cannot be read."""


class LogUnavailable(BusError):
    """Raised when the durable log cannot be opened, read or written."""


class EventsTrimmed(LogUnavailable):
    """Raised when a reader requires events that were trimmed from the beginning of the log."""


class CertificateUnusable(BusError):
    """Raised when the files of a certificate cannot be used; `part` is the setting of the one at fault."""

    def __init__(self, part: str, message: str) -> None:
        super().__init__(message)
        self.part = part


class RecordingDamaged(BusError):
    """Raised when a file is no recording, or ends in the middle of an entry, after all complete entries were read."""
