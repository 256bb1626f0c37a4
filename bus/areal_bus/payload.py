"""Payloads on the wire and in the log: envelopes in msgpack, compressed for the log and where they are long.

A compressed payload begins with `COMPRESSED`, with which no msgpack begins, and the number of a dictionary: bytes that
messages often contain, such as names of fields. The rest is a zstd frame without its magic number, with this
dictionary; with dictionary 1, of earlier versions, it is raw deflate, and with number 0 there is none. Each message is
compressed alone, so that damage loses no other.
"""

from __future__ import annotations

import threading
import zlib
from functools import cache
from typing import Final

import msgspec
import zstandard

from areal_bus.base import Envelope
from areal_bus.errors import CorruptMessage
from areal_bus.message import Event, Message, Request, Work
from areal_bus.product import current_product

COMPRESSED: Final = 0xC1
_MARK: Final = bytes([COMPRESSED])
_HEAD_BYTES: Final = 2
LONG_BYTES: Final = 512
"""Size of an envelope from which work, which the server keeps, is compressed, too, and requests that state it."""
LONG_LIVE_BYTES: Final = 512 << 10
"""Size from which live messages are compressed: half of what the server takes. To compress a prompt of 500 tokens takes
30 µs and one of 100,000 takes 2.7 ms, many times as long as to send the bytes that it saves."""
_LARGEST_BYTES: Final = 256 << 20
"""Size beyond which an envelope cannot come from this program."""
_RAW: Final = -15
_FORMAT: Final = zstandard.FORMAT_ZSTD1_MAGICLESS
_LONGEST_HEADER: Final = 14
"""Bytes of the longest header of a zstd frame without magic number; an unknown size is the largest number."""
_LEVEL: Final = 5
"""A short event takes 7 µs: at level 3 5 µs for 4 % more bytes, at level 6 twice as long for less than 1 % fewer."""
_LONG_LEVEL: Final = 1
"""Level for an envelope of `_LONG_EVENT_BYTES` or more: a fifth of the time for 2 % more bytes."""
_LONG_EVENT_BYTES: Final = 4096

_DEFLATE: Final = 1
"""The one dictionary that is zlib's."""
_NONE: Final = 0
"""Number of a payload that was compressed without a dictionary."""

_envelopes = msgspec.msgpack.Decoder(Envelope)


def _parameters(level: int) -> zstandard.ZstdCompressionParameters:
    return zstandard.ZstdCompressionParameters.from_level(
        level, format=_FORMAT, write_content_size=True, write_dict_id=False, write_checksum=False
    )


@cache
def read_dictionaries() -> dict[int, bytes]:
    """Returns the dictionaries of the product by number."""
    return {number: path.read_bytes() for number, path in current_product().dictionaries.items()}


@cache
def _zstd_dictionaries() -> dict[int, zstandard.ZstdCompressionDict]:
    return {
        number: zstandard.ZstdCompressionDict(content)
        for number, content in read_dictionaries().items()
        if number != _DEFLATE
    }


def _compressor(level: int) -> zstandard.ZstdCompressor:
    """Returns a compressor with the newest dictionary, which it has prepared for its level."""
    number, parameters = _head()[1], _parameters(level)
    if number == _NONE:
        return zstandard.ZstdCompressor(compression_params=parameters)
    return zstandard.ZstdCompressor(dict_data=_prepared_dictionary(level), compression_params=parameters)


@cache
def _prepared_dictionary(level: int) -> zstandard.ZstdCompressionDict:
    dictionary = zstandard.ZstdCompressionDict(read_dictionaries()[_head()[1]])
    dictionary.precompute_compress(compression_params=_parameters(level))
    return dictionary


@cache
def _head() -> bytes:
    """Returns the two bytes before what is compressed here: with the newest dictionary, if there is one."""
    return bytes([COMPRESSED, max(_zstd_dictionaries(), default=_NONE)])


class _Contexts(threading.local):
    """A thread's contexts of zstd, which two threads may not use at once.

    Making one takes longer than to compress a message.
    """

    def __init__(self) -> None:
        dictionaries: dict[int, zstandard.ZstdCompressionDict | None] = {_NONE: None, **_zstd_dictionaries()}
        self.compressor, self.long_compressor = _compressor(_LEVEL), _compressor(_LONG_LEVEL)
        self.decompressors = {
            number: zstandard.ZstdDecompressor(dict_data=dictionary, format=_FORMAT)
            for number, dictionary in dictionaries.items()
        }


@cache
def _contexts() -> _Contexts:
    return _Contexts()


def pack(envelope: Envelope, kind: type[Message]) -> bytes:
    """Encode an envelope of a message of this kind."""
    encoded = msgspec.msgpack.encode(envelope)
    if not issubclass(kind, Event) and len(encoded) < _least_compressed(kind):
        return encoded
    contexts = _contexts()
    compressor = contexts.compressor if len(encoded) < _LONG_EVENT_BYTES else contexts.long_compressor
    compressed = _head() + compressor.compress(encoded)
    return compressed if len(compressed) < len(encoded) else encoded


def _least_compressed(kind: type[Message]) -> int:
    """Returns the size from which messages of this kind that are no events are compressed."""
    is_rare = issubclass(kind, Work) or (issubclass(kind, Request) and kind.compressed)
    return LONG_BYTES if is_rare else LONG_LIVE_BYTES


def unpack(payload: bytes, *, where: str, sequence: int = 0) -> Envelope:
    """Decode an envelope.

    Raises:
        CorruptMessage: the payload is not an envelope.
    """
    try:
        envelope = _envelopes.decode(_decompress(payload) if payload[:1] == _MARK else payload)
    except (msgspec.MsgspecError, zlib.error, zstandard.ZstdError, ValueError) as error:
        raise CorruptMessage(f"{where}: not an envelope: {error}") from error
    if sequence:
        msgspec.structs.force_setattr(envelope, "sequence", sequence)
    return envelope


def _decompress(payload: bytes) -> bytes:
    if len(payload) < _HEAD_BYTES or payload[1] not in {_NONE, *read_dictionaries()}:
        raise ValueError("it is compressed with a dictionary that this version does not have: read it with a newer one")
    number, rest = payload[1], memoryview(payload)[_HEAD_BYTES:]
    return _inflate(rest) if number == _DEFLATE else _of_frame(rest, number)


def _of_frame(frame: memoryview, number: int) -> bytes:
    if zstandard.get_frame_parameters(frame[:_LONGEST_HEADER], format=_FORMAT).content_size > _LARGEST_BYTES:
        raise ValueError("it does not begin with the size of an envelope")
    return _contexts().decompressors[number].decompress(frame, allow_extra_data=False)


def _inflate(deflated: memoryview) -> bytes:
    inflater = zlib.decompressobj(_RAW, zdict=read_dictionaries()[_DEFLATE])
    encoded = inflater.decompress(deflated, _LARGEST_BYTES)
    if not inflater.eof:
        raise ValueError("its deflated data does not end")
    return encoded
