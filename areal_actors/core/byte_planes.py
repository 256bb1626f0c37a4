"""Columns of four-byte values as byte planes: the lowest bytes of all values, then their second bytes, and so on.

Token ids need two or three of the four planes, and planes of equal bytes are what the log's compression finds.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

VALUE_BYTES = 4
IdPlanes = Annotated[int, msgspec.Meta(ge=0, le=VALUE_BYTES)]
"""Number of planes of token ids in a message; 0 for whole columns."""


def planes_needed(*columns: bytes) -> int:
    """Returns the number of planes, 2 to 4, without which none but zeros are left out.

    0 if a column is not of four-byte values.
    """
    if any(len(column) % VALUE_BYTES for column in columns):
        return 0
    for planes in (4, 3):
        if any(column[planes - 1 :: VALUE_BYTES].strip(b"\0") for column in columns):
            return planes
    return 2


def to_planes(column: bytes, planes: int = VALUE_BYTES) -> bytes:
    """Returns the lowest planes of a column."""
    return b"".join(column[plane::VALUE_BYTES] for plane in range(planes))


def from_planes(packed: bytes, planes: int = VALUE_BYTES) -> bytes:
    """Returns the column of these planes; the ones left out are zeros.

    Raises:
        ValueError: the planes are not of one length.
    """
    count, rest = divmod(len(packed), planes)
    if rest:
        raise ValueError(f"{len(packed)} bytes are not {planes} planes of one length")
    column = bytearray(VALUE_BYTES * count)
    for plane in range(planes):
        column[plane::VALUE_BYTES] = packed[plane * count : (plane + 1) * count]
    return bytes(column)


def set_fields(struct: msgspec.Struct, **fields: Any) -> None:
    """Set fields of a frozen struct to which nothing else refers yet."""
    for name, value in fields.items():
        msgspec.structs.force_setattr(struct, name, value)
