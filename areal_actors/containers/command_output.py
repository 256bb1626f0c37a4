"""The output of a command, of which the middle is left out if it is long."""

from __future__ import annotations

import asyncio

CHUNK = 1 << 16


class CommandOutput:
    """The beginning and the end of a stream."""

    def __init__(self, longest: int) -> None:
        """`longest` bytes are kept."""
        self.half = max(longest // 2, 1)
        self.first, self.last, self.size = bytearray(), bytearray(), 0

    async def read(self, stream: asyncio.StreamReader) -> None:
        """Read to the end."""
        while chunk := await stream.read(CHUNK):
            self.size += len(chunk)
            room = self.half - len(self.first)
            self.first += chunk[:room]
            self.last += chunk[max(room, 0) :]
            del self.last[: -self.half]

    def text(self) -> str:
        """Returns what was kept, with the number of bytes in between."""
        left_out = self.size - len(self.first) - len(self.last)
        middle = f"\n… {left_out} bytes left out …\n".encode() if left_out else b""
        return (bytes(self.first) + middle + bytes(self.last)).decode(errors="replace")
