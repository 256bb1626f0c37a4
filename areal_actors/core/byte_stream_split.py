"""Byte-stream split of columns of four-byte values: the lowest bytes of all values, then their second bytes, and so on.

Token ids need two or three of the four byte streams, and streams of equal bytes are what the log's compression finds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from areal_actors.core.lazy import LazyModule

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

VALUE_BYTES = 4
IdStreams = Annotated[int, msgspec.Meta(ge=0, le=VALUE_BYTES)]
"""Number of streams of token ids in a message; 0 for whole columns."""
LONG_BYTES = 4096
"""Length from which numpy finds the largest id sooner than Python compares with zeros."""


def streams_needed(*columns: bytes) -> int:
    """Returns the number of streams, 2 to 4, without which none but zeros are left out.

    0 if a column is not of four-byte values.
    """
    if any(len(column) % VALUE_BYTES for column in columns):
        return 0
    if max(map(len, columns), default=0) > LONG_BYTES:
        highest = max(int(np.frombuffer(column, np.uint32).max()) for column in columns if column)
        return 4 if highest >> 24 else 3 if highest >> 16 else 2
    for streams in (4, 3):
        for column in columns:
            if column[streams - 1 :: VALUE_BYTES] != bytes(len(column) // VALUE_BYTES):
                return streams
    return 2


def split_streams(column: bytes, streams: int = VALUE_BYTES) -> bytes:
    """Returns the lowest streams of a column."""
    return b"".join([column[stream::VALUE_BYTES] for stream in range(streams)])


def join_streams(packed: bytes, streams: int = VALUE_BYTES) -> bytes:
    """Returns the column of these streams; the ones left out are zeros.

    Raises:
        ValueError: the streams are not of one length.
    """
    count, rest = divmod(len(packed), streams)
    if rest:
        raise ValueError(f"{len(packed)} bytes are not {streams} streams of one length")
    column = bytearray(VALUE_BYTES * count)
    for stream in range(streams):
        column[stream::VALUE_BYTES] = packed[stream * count : (stream + 1) * count]
    return bytes(column)


def set_fields(struct: msgspec.Struct, **fields: Any) -> None:
    """Set fields of a frozen struct to which nothing else refers yet."""
    for name, value in fields.items():
        msgspec.structs.force_setattr(struct, name, value)
