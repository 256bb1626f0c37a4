"""Protocol Buffers' wire format, without generated code.

A message is read as its fields by number, and written field by field.
Tinker's clients send datums and receive samples and loss outputs in it; all other bodies are JSON.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from areal_actors.core.errors import RequestError

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""Wire types."""
SIGN = 1 << 63
DAMAGED = (
    "the body is no valid Protocol Buffers message: {what} at byte {at}; send it as the client library serializes it"
)

Field = int | bytes
"""A varint as an unsigned number; every other type as its bytes."""


class WireMessage:
    """A received message: the values of each field, in the order of the message."""

    def __init__(self, data: bytes) -> None:
        """Read all fields.

        Raises:
            RequestError: the bytes are no message, or end within a field.
        """
        self._fields: dict[int, list[Field]] = {}
        at = 0
        while at < len(data):
            key, at = _varint(data, at)
            value, at = _value(data, at, key & 7)
            self._fields.setdefault(key >> 3, []).append(value)

    def number(self, field: int, default: int = 0) -> int:
        """The last value of an integer field, signed."""
        value = self._fields.get(field, [default])[-1]
        if not isinstance(value, int):
            raise RequestError(DAMAGED.format(what=f"field {field} is no integer", at=0))
        return _to_signed(value)

    def payload(self, field: int) -> bytes:
        """The last value of a field of bytes; empty without one."""
        return self.payloads(field)[-1] if field in self._fields else b""

    def text(self, field: int) -> str:
        """The last value of a text field; empty without one."""
        try:
            return self.payload(field).decode()
        except UnicodeDecodeError as error:
            raise RequestError(DAMAGED.format(what=f"field {field} is no UTF-8 text", at=error.start)) from error

    def double(self, field: int) -> float:
        """The last value of a field of 64-bit floats; 0 without one."""
        content = self.payload(field)
        if len(content) not in (0, 8):
            raise RequestError(DAMAGED.format(what=f"field {field} is no 64-bit float", at=0))
        return float(struct.unpack("<d", content)[0]) if content else 0.0

    def payloads(self, field: int) -> list[bytes]:
        """All values of a repeated field of bytes, or of messages."""
        contents = self._fields.get(field, [])
        values = [value for value in contents if isinstance(value, bytes)]
        if len(values) < len(contents):
            raise RequestError(DAMAGED.format(what=f"field {field} holds an integer, and bytes are expected", at=0))
        return values

    def messages(self, field: int) -> list[WireMessage]:
        """All values of a repeated message field."""
        return [WireMessage(value) for value in self.payloads(field)]

    def entries(self, field: int) -> dict[str, WireMessage]:
        """The entries of a map from text to messages."""
        return {entry.text(1): WireMessage(entry.payload(2)) for entry in self.messages(field)}

    def doubles(self, field: int) -> dict[str, float]:
        """The entries of a map from text to 64-bit floats."""
        return {entry.text(1): entry.double(2) for entry in self.messages(field)}

    def numbers(self, field: int) -> list[int]:
        """All values of a repeated integer field, packed or not."""
        values: list[int] = []
        for value in self._fields.get(field, []):
            if isinstance(value, int):
                values.append(_to_signed(value))
                continue
            at = 0
            while at < len(value):
                number, at = _varint(value, at)
                values.append(_to_signed(number))
        return values

    def __contains__(self, field: int) -> bool:
        return field in self._fields


def integer(field: int, value: int) -> bytes:
    """A varint field; 0 is the default and is not written."""
    return _key(field, VARINT) + _to_varint(value) if value else b""


def blob(field: int, value: bytes | str) -> bytes:
    """A field of bytes, text, or a serialized message; written when empty, too."""
    data = value.encode() if isinstance(value, str) else value
    return _key(field, LENGTH) + _to_varint(len(data)) + data


def pack_integers(field: int, values: Sequence[int]) -> bytes:
    """A repeated integer field."""
    return blob(field, b"".join(map(_to_varint, values))) if values else b""


def double_map(field: int, values: Mapping[str, float]) -> bytes:
    """A map from text to 64-bit floats."""
    return b"".join(
        blob(field, blob(1, name) + _key(2, FIXED64) + struct.pack("<d", value)) for name, value in values.items()
    )


def message_map(field: int, values: Mapping[str, bytes]) -> bytes:
    """A map from text to serialized messages."""
    return b"".join(blob(field, blob(1, name) + blob(2, value)) for name, value in values.items())


def _value(data: bytes, at: int, wire_type: int) -> tuple[Field, int]:
    """Returns the value that begins at a byte, and where it ends."""
    if wire_type == VARINT:
        return _varint(data, at)
    if wire_type == LENGTH:
        size, at = _varint(data, at)
    elif wire_type in (FIXED64, FIXED32):
        size = 8 if wire_type == FIXED64 else 4
    else:
        raise RequestError(DAMAGED.format(what=f"wire type {wire_type}", at=at))
    if at + size > len(data):
        raise RequestError(DAMAGED.format(what=f"a field of {size} bytes is cut short", at=at))
    return data[at : at + size], at + size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value & (2**64 - 1), at
        shift += 7
    raise RequestError(DAMAGED.format(what="an integer does not end", at=at))


def _to_varint(value: int) -> bytes:
    value &= 2**64 - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _key(field: int, wire_type: int) -> bytes:
    return _to_varint(field << 3 | wire_type)


def _to_signed(value: int) -> int:
    return value - 2 * SIGN if value >= SIGN else value
