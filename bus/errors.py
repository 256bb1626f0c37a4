"""Everything that can go wrong on the bus.

BusError
├── ServerUnavailable    no server at that address, or it refused us; at start and while running
│   └── ServerKilled     somebody killed the server while it started
├── PermissionDenied     this user of the bus may not publish or subscribe to that subject
├── NoResponder          nobody serves this request now
├── NoReply              somebody was asked and did not answer within the deadline
│   └── AnswerLost       the connection broke while an answer was awaited, or a part of the answer is missing
├── MessageTooLarge      a message beyond what the server accepts, refused before it is sent
├── CorruptMessage       checksum or schema of a received message does not hold
│   └── LogDamaged       the log has a hole: an event is missing in the server's store
├── ClaimLost            the file that holds a large message's body cannot be read
├── LogUnavailable       the durable log cannot be opened or written (store, disk, limits)
│   └── EventsTrimmed    events that a reader wants were removed from the beginning of the log
└── RecordingDamaged     a recording's file ends in the middle, or is none
"""


class BusError(Exception):
    """Base of all bus errors; the message says what to do."""


class ServerUnavailable(BusError):
    """Raised when the server cannot be started or reached."""


class ServerKilled(ServerUnavailable):
    """Raised when somebody kills the server while it starts; another start may succeed."""


class PermissionDenied(BusError):
    """Raised when the server does not let this user publish or subscribe to a subject; `subject` is in lower case."""

    def __init__(self, message: str, subject: str) -> None:
        super().__init__(message)
        self.subject = subject


class NoResponder(BusError):
    """Raised at once when nobody serves a request's subject."""


class NoReply(BusError, TimeoutError):
    """Raised when a request's deadline passes without an answer."""


class AnswerLost(NoReply):
    """Raised when the connection broke while an answer was awaited, or when a part of an answer is missing: ask again."""


class MessageTooLarge(BusError):
    """Raised before sending a message that the server would refuse."""


class CorruptMessage(BusError):
    """Raised when a received message's checksum or schema does not hold."""


class LogDamaged(CorruptMessage):
    """Raised when an event is missing in the middle of the log, or at its end although the server counts it."""


class ClaimLost(BusError):
    """Raised when a received message's body lies in a file that cannot be read."""


class LogUnavailable(BusError):
    """Raised when the durable log cannot be opened, read or written."""


class EventsTrimmed(LogUnavailable):
    """Raised when a reader wants events that were trimmed from the beginning of the log."""


class RecordingDamaged(BusError):
    """Raised when a recording ends in the middle of an entry, after all whole entries were read, or is none at all."""
