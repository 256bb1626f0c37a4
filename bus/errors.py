"""Everything that can go wrong on the bus.

BusError
├── ServerUnavailable    no server at that address, or it refused us; at start and while running
├── NoResponder          nobody serves this request now
├── NoReply              somebody was asked and did not answer within the deadline
├── MessageTooLarge      a message beyond what the server accepts, refused before it is sent
├── CorruptMessage       checksum or schema of a received message does not hold
├── ClaimLost            the file that holds a large message's body cannot be read
├── LogUnavailable       the durable log cannot be opened or written (store, disk, limits)
└── RecordingDamaged     a recording's file ends in the middle, or is none
"""


class BusError(Exception):
    """Base of all bus errors; the message says what to do."""


class ServerUnavailable(BusError):
    """Raised when the server cannot be started or reached."""


class NoResponder(BusError):
    """Raised at once when nobody serves a request's subject."""


class NoReply(BusError, TimeoutError):
    """Raised when a request's deadline passes without an answer."""


class MessageTooLarge(BusError):
    """Raised before sending a message that the server would refuse."""


class CorruptMessage(BusError):
    """Raised when a received message's checksum or schema does not hold."""


class ClaimLost(BusError):
    """Raised when a received message's body lies in a file that cannot be read."""


class LogUnavailable(BusError):
    """Raised when the durable log cannot be opened, read or written."""


class RecordingDamaged(BusError):
    """Raised when a recording ends in the middle of an entry, after all whole entries were read, or is none at all."""
