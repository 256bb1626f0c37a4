"""Payloads of the log and the wire: compressed where that takes fewer bytes, read back as they were, and damage is
found."""

from __future__ import annotations

import zlib
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from support.bus_cases import Do, Double, Happened

from areal_actors.messages import KINDS, OpenSession
from areal_bus.base import Envelope
from areal_bus.errors import CorruptMessage
from areal_bus.payload import COMPRESSED, LONG_BYTES, LONG_LIVE_BYTES, pack, read_dictionaries, unpack
from areal_bus.recorded import read_log

RECORDINGS = sorted(Path(__file__).with_name("recordings").glob("log-*.xz"))
RELEASED = {
    1: "9f5de5e8de346dd4adfbdde63f3143f5313f63ba83f6ed3f0a06d3779825c45a",
    2: "e258b46d126ce9f2c0d3e828b492e8a437019400cb0d1ee358c0663448a311e6",
    3: "cb18809db194015a6a3a2d7290dd9732f7216b395e07cf4ab41288f5c1807f56",
}
"""Digests of the dictionaries of released versions."""
BY_SUBJECT = {kind.subject: kind for kind in KINDS}


def envelope(body: bytes = b"\x80", **fields: object) -> Envelope:
    return Envelope(
        **{
            "subject": "a.b",
            "id": "1",
            "sender": "s",
            "time": 1.5,
            "run": "r",
            "checksum": zlib.crc32(body),
            "body": body,
            **fields,
        }
    )


def test_logs_of_released_versions_can_be_read_because_no_dictionary_changes():
    assert {number: sha256(content).hexdigest() for number, content in read_dictionaries().items()} == RELEASED


@pytest.mark.parametrize("length", [3000, 3990, 4096, 5000, 200_000])
def test_events_of_any_length_are_read_back_in_any_thread_and_take_fewer_bytes(length):
    sent = envelope(b"".join(b"%d " % number for number in range(length))[:length])
    with ThreadPoolExecutor(4) as threads:
        payloads = set(threads.map(lambda _: pack(sent, Happened), range(8)))
        (payload,) = payloads
        assert all(read == sent for read in threads.map(lambda _: unpack(payload, where="here"), range(8)))
    assert len(payload) < 0.6 * length


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_recorded_events_are_read_back_as_they_were_and_take_half_the_bytes(path):
    whole = packed = 0
    for recorded in read_log(path):
        payload = pack(recorded, BY_SUBJECT[recorded.subject])
        assert unpack(payload, where="here") == recorded
        whole, packed = whole + len(msgspec.msgpack.encode(recorded)), packed + len(payload)
    assert packed < 0.5 * whole


def test_an_event_is_compressed_and_a_short_message_that_is_not_logged_is_not():
    assert pack(envelope(), Happened)[0] == COMPRESSED
    for kind in (Do, Double):
        assert pack(envelope(), kind) == msgspec.msgpack.encode(envelope())
        assert len(pack(envelope(b"a" * LONG_LIVE_BYTES), kind)) < 200
    assert len(pack(envelope(b"a" * LONG_BYTES), Do)) < 200, "the server keeps work"
    assert len(pack(envelope(b"a" * LONG_BYTES), Double)) > LONG_BYTES
    assert len(pack(envelope(b"a" * LONG_BYTES), OpenSession)) < 200, "it has the work of an episode"
    assert pack(envelope(), OpenSession) == msgspec.msgpack.encode(envelope())


def deflated(one: Envelope) -> bytes:
    compressor = zlib.compressobj(6, wbits=-15, zdict=read_dictionaries()[1])
    return bytes([COMPRESSED, 1]) + compressor.compress(msgspec.msgpack.encode(one)) + compressor.flush()


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_events_that_an_earlier_version_deflated_are_read(path):
    for recorded in read_log(path):
        assert unpack(deflated(recorded), where="here") == recorded


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("number", sorted(RELEASED)[1:])
def test_events_compressed_with_any_released_dictionary_are_read(path, number):
    dictionary = zstandard.ZstdCompressionDict(read_dictionaries()[number])
    parameters = zstandard.ZstdCompressionParameters.from_level(
        5, format=zstandard.FORMAT_ZSTD1_MAGICLESS, write_content_size=True, write_dict_id=False
    )
    compressor = zstandard.ZstdCompressor(dict_data=dictionary, compression_params=parameters)
    for recorded in read_log(path):
        frame = compressor.compress(msgspec.msgpack.encode(recorded))
        assert unpack(bytes([COMPRESSED, number]) + frame, where="here") == recorded


def test_threads_compress_at_once():
    envelopes = [envelope(bytes([number]) * 5000 + bytes(range(256)) * 20, id=str(number)) for number in range(64)]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(20):
            payloads = threads.map(lambda one: pack(one, Happened), envelopes)
            assert list(threads.map(lambda payload: unpack(payload, where="here"), payloads)) == envelopes


@given(st.binary(max_size=4000))
def test_any_body_is_read_back_and_takes_no_more_than_it_did(body):
    for kind in (Happened, Do):
        payload = pack(envelope(body), kind)
        assert unpack(payload, where="here", sequence=7) == envelope(body, sequence=7)
        assert len(payload) <= len(msgspec.msgpack.encode(envelope(body)))


def test_messages_of_versions_that_did_not_compress_are_read():
    assert unpack(msgspec.msgpack.encode(envelope()), where="here") == envelope()


def test_every_flipped_byte_of_a_body_is_found():
    """Most damage is no zstd frame of this size; the rest is found by the checksum."""
    payload = pack(envelope(bytes(range(256)) * 2), Happened)
    found = 0
    for place in range(len(payload)):
        damaged = bytearray(payload)
        damaged[place] ^= 0x55
        try:
            read = unpack(bytes(damaged), where="event 7")
        except CorruptMessage:
            found += 1
        else:
            found += zlib.crc32(read.body) != read.checksum
            assert zlib.crc32(read.body) != read.checksum or read.body == bytes(range(256)) * 2
    assert found > 0.9 * len(payload)


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\xc1\xff", b"\xc1\x01", b"\xc1\x01\xff\xff\xff"])
def test_what_is_no_payload_is_a_corrupt_message(payload):
    with pytest.raises(CorruptMessage, match="event 7: not an envelope"):
        unpack(payload, where="event 7")


def test_a_dictionary_of_a_newer_version_is_named():
    with pytest.raises(CorruptMessage, match="a dictionary that this version does not have"):
        unpack(bytes([COMPRESSED, 200]) + b"abc", where="event 7")


def test_a_truncated_payload_is_a_corrupt_message():
    payload = pack(envelope(b"text " * 200), Happened)
    for end in range(len(payload)):
        with pytest.raises(CorruptMessage):
            unpack(payload[:end], where="event 7")
