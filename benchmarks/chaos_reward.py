"""A reward that differs between the answers of a group.

So every step changes the weights of an untrained model.
"""

from __future__ import annotations

import zlib
from typing import Any


def varied(task: dict[str, Any], output: str) -> float:  # noqa: ARG001 - signature of rewards
    """0, 0.25 … 1 by a checksum of the answer."""
    return zlib.crc32(output.encode()) % 5 / 4
