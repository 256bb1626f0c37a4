"""Payloads on the wire and in the log: envelopes in msgpack, compressed for the log and where they are long.

A compressed payload begins with `COMPRESSED`, with which no msgpack begins, and the number of a dictionary: bytes that messages often
contain, such as names of fields. The rest is a zstd frame without its magic number, with this dictionary; with dictionary 1, of earlier
versions, it is raw deflate. Each message is compressed alone, so that damage loses no other.
"""

from __future__ import annotations

import threading
import zlib
from pathlib import Path
from typing import Final

import msgspec
import zstandard

from bus.base import Envelope
from bus.errors import CorruptMessage
from bus.message import Event, Message

COMPRESSED: Final = 0xC1
LONG_BYTES: Final = 512
"""Size of an envelope from which work and live messages are compressed, too."""
_LARGEST_BYTES: Final = 256 << 20
"""Size beyond which an envelope cannot come from this program."""
_RAW: Final = -15
_FORMAT: Final = zstandard.FORMAT_ZSTD1_MAGICLESS
_LONGEST_HEADER: Final = 14
"""Bytes of the longest header of a zstd frame without magic number; an unknown size is the largest number."""
_LEVEL: Final = 5
"""A short event takes 7 µs: at level 3 5 µs for 4 % more bytes, at level 6 twice as long for less than 1 % fewer."""

DICTIONARIES: Final = {number: Path(__file__).with_name(f"dictionary_{number}.bin").read_bytes() for number in (1, 2)}
"""Dictionaries by number. Logs need them for ever: none may change, another gets the next number (`scripts/bus_dictionary.py`)."""
_DEFLATE: Final = 1
"""The one dictionary that is zlib's."""
_NUMBER: Final = max(DICTIONARIES)
_HEAD: Final = bytes([COMPRESSED, _NUMBER])

_envelopes = msgspec.msgpack.Decoder(Envelope)


def _dictionary(number: int) -> zstandard.ZstdCompressionDict:
    dictionary = zstandard.ZstdCompressionDict(DICTIONARIES[number])
    dictionary.precompute_compress(compression_params=_PARAMETERS)
    return dictionary


_PARAMETERS: Final = zstandard.ZstdCompressionParameters.from_level(
    _LEVEL, format=_FORMAT, write_content_size=True, write_dict_id=False, write_checksum=False
)
_DICTIONARIES: Final = {number: _dictionary(number) for number in DICTIONARIES if number != _DEFLATE}


class _Contexts(threading.local):
    """A thread's contexts of zstd, which two threads may not use at once; making one takes longer than to compress a message."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(dict_data=_DICTIONARIES[_NUMBER], compression_params=_PARAMETERS)
        self.decompressors = {
            number: zstandard.ZstdDecompressor(dict_data=dictionary, format=_FORMAT) for number, dictionary in _DICTIONARIES.items()
        }


_contexts = _Contexts()


def pack(envelope: Envelope, kind: type[Message]) -> bytes:
    """Encode an envelope of a message of this kind."""
    encoded = msgspec.msgpack.encode(envelope)
    if len(encoded) < LONG_BYTES and not issubclass(kind, Event):
        return encoded
    compressed = _HEAD + _contexts.compressor.compress(encoded)
    return compressed if len(compressed) < len(encoded) else encoded


def unpack(payload: bytes, *, where: str, sequence: int = 0) -> Envelope:
    """Decode an envelope.

    Raises:
        CorruptMessage: the payload is not an envelope.
    """
    try:
        envelope = _envelopes.decode(_decompressed(payload) if payload[:1] == _HEAD[:1] else payload)
    except (msgspec.MsgspecError, zlib.error, zstandard.ZstdError, ValueError) as error:
        raise CorruptMessage(f"{where}: not an envelope: {error}") from error
    if sequence:
        msgspec.structs.force_setattr(envelope, "sequence", sequence)
    return envelope


def _decompressed(payload: bytes) -> bytes:
    if len(payload) < len(_HEAD) or payload[1] not in DICTIONARIES:
        raise ValueError("it is compressed with a dictionary that this version does not have: read it with a newer one")
    number, rest = payload[1], memoryview(payload)[len(_HEAD) :]
    return _inflated(rest) if number == _DEFLATE else _of_frame(rest, number)


def _of_frame(frame: memoryview, number: int) -> bytes:
    if zstandard.get_frame_parameters(frame[:_LONGEST_HEADER], format=_FORMAT).content_size > _LARGEST_BYTES:
        raise ValueError("it does not begin with the size of an envelope")
    return _contexts.decompressors[number].decompress(frame, allow_extra_data=False)


def _inflated(deflated: memoryview) -> bytes:
    inflater = zlib.decompressobj(_RAW, zdict=DICTIONARIES[_DEFLATE])
    encoded = inflater.decompress(deflated, _LARGEST_BYTES)
    if not inflater.eof:
        raise ValueError("its deflated data does not end")
    return encoded
