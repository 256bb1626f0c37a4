"""Payloads on the wire and in the log: envelopes in msgpack, deflated for the log and where they are long.

A deflated payload begins with `DEFLATED`, with which no msgpack begins, and the number of a dictionary: bytes that messages often contain,
such as names of fields, with which zlib begins. The rest is raw deflate. Each message is compressed alone, so that damage loses no other.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Final

import msgspec

from bus.base import Envelope
from bus.errors import CorruptMessage
from bus.message import Event, Message, Work

DEFLATED: Final = 0xC1
LONG_BYTES: Final = 4096
"""Size of an envelope from which live messages are deflated, too: for shorter ones it costs more CPU than sending them."""
LONG_WORK_BYTES: Final = 512
"""The same for work, which the server stores until it is done."""
_LARGEST_BYTES: Final = 256 << 20
"""Size beyond which an envelope cannot come from this program."""
_RAW: Final = -15
_LEVEL: Final = 2
_LOG_LEVEL: Final = 6
"""2 % smaller, for up to three times the time: an event is packed once and stays in the log."""
_LONG_LOG_LEVEL: Final = 4
"""Level of long events: within 2 % of `_LOG_LEVEL` in half of its time, since most of their bytes are noise of log-probabilities."""

DICTIONARIES: Final = {number: Path(__file__).with_name(f"dictionary_{number}.bin").read_bytes() for number in (1,)}
"""Dictionaries by number. Logs need them for ever: none may change, another gets the next number (`scripts/bus_dictionary.py`)."""
_NUMBER: Final = max(DICTIONARIES)
_HEAD: Final = bytes([DEFLATED, _NUMBER])

_envelopes = msgspec.msgpack.Decoder(Envelope)


def pack(envelope: Envelope, kind: type[Message]) -> bytes:
    """Encode an envelope of a message of this kind."""
    encoded = msgspec.msgpack.encode(envelope)
    logged = issubclass(kind, Event)
    if not logged and len(encoded) < (LONG_WORK_BYTES if issubclass(kind, Work) else LONG_BYTES):
        return encoded
    level = (_LOG_LEVEL if len(encoded) < LONG_BYTES else _LONG_LOG_LEVEL) if logged else _LEVEL
    compressor = zlib.compressobj(level, wbits=_RAW, zdict=DICTIONARIES[_NUMBER])
    deflated = b"".join((_HEAD, compressor.compress(encoded), compressor.flush()))
    return deflated if len(deflated) < len(encoded) else encoded


def unpack(payload: bytes, *, where: str, sequence: int = 0) -> Envelope:
    """Decode an envelope.

    Raises:
        CorruptMessage: the payload is not an envelope.
    """
    try:
        envelope = _envelopes.decode(_inflated(payload) if payload[:1] == _HEAD[:1] else payload)
    except (msgspec.MsgspecError, zlib.error, ValueError) as error:
        raise CorruptMessage(f"{where}: not an envelope: {error}") from error
    if sequence:
        msgspec.structs.force_setattr(envelope, "sequence", sequence)
    return envelope


def _inflated(payload: bytes) -> bytes:
    if len(payload) < len(_HEAD) or payload[1] not in DICTIONARIES:
        raise ValueError("it is deflated with a dictionary that this version does not have: read it with a newer one")
    inflater = zlib.decompressobj(_RAW, zdict=DICTIONARIES[payload[1]])
    encoded = inflater.decompress(payload[len(_HEAD) :], _LARGEST_BYTES)
    if not inflater.eof:
        raise ValueError("its deflated data does not end")
    return encoded
