"""Payloads of the log and the wire: deflated where that takes fewer bytes, read back as they were, and damage is found."""

from __future__ import annotations

import zlib
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bus_cases import Do, Double, Happened

from areal_actors.messages import KINDS
from bus.base import Envelope
from bus.errors import CorruptMessage
from bus.payload import DEFLATED, DICTIONARIES, LONG_BYTES, LONG_WORK_BYTES, pack, unpack
from bus.recorded import read_log

RECORDINGS = sorted(Path(__file__).with_name("recordings").glob("log-*.xz"))
RELEASED = {1: "9f5de5e8de346dd4adfbdde63f3143f5313f63ba83f6ed3f0a06d3779825c45a"}
"""Digests of the dictionaries of released versions."""
BY_SUBJECT = {kind.subject: kind for kind in KINDS}


def envelope(body: bytes = b"\x80", **fields: object) -> Envelope:
    return Envelope(
        **{"subject": "a.b", "id": "1", "sender": "s", "time": 1.5, "run": "r", "checksum": zlib.crc32(body), "body": body, **fields}
    )


def test_logs_of_released_versions_can_be_read_because_no_dictionary_changes():
    assert {number: sha256(content).hexdigest() for number, content in DICTIONARIES.items()} == RELEASED


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_recorded_events_are_read_back_as_they_were_and_take_half_the_bytes(path):
    whole = packed = 0
    for recorded in read_log(path):
        payload = pack(recorded, BY_SUBJECT[recorded.subject])
        assert unpack(payload, where="here") == recorded
        whole, packed = whole + len(msgspec.msgpack.encode(recorded)), packed + len(payload)
    assert packed < 0.55 * whole


def test_an_event_is_deflated_and_a_short_message_that_is_not_logged_is_not():
    assert pack(envelope(), Happened)[0] == DEFLATED
    assert pack(envelope(), Do) == msgspec.msgpack.encode(envelope())
    assert len(pack(envelope(b"a" * LONG_WORK_BYTES), Do)) < 200
    assert len(pack(envelope(b"a" * LONG_BYTES), Double)) < 200
    assert pack(envelope(b"a" * LONG_WORK_BYTES), Double)[0] != DEFLATED


@given(st.binary(max_size=4000))
def test_any_body_is_read_back_and_takes_no_more_than_it_did(body):
    for kind in (Happened, Do):
        payload = pack(envelope(body), kind)
        assert unpack(payload, where="here", sequence=7) == envelope(body, sequence=7)
        assert len(payload) <= len(msgspec.msgpack.encode(envelope(body)))


def test_messages_of_versions_that_did_not_deflate_are_read():
    assert unpack(msgspec.msgpack.encode(envelope()), where="here") == envelope()


def test_every_flipped_byte_of_a_body_is_found():
    """Most damage ends the deflated data early or is no deflated data; the rest is found by the checksum."""
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
        unpack(bytes([DEFLATED, 200]) + b"abc", where="event 7")


def test_a_truncated_payload_is_a_corrupt_message():
    payload = pack(envelope(b"text " * 200), Happened)
    for end in range(len(payload)):
        with pytest.raises(CorruptMessage):
            unpack(payload[:end], where="event 7")
