"""Reads messages of direct subscriptions that arrive whole; the library's parser reads everything else.

The library matches every line with up to seven expressions and copies each message twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from nats.aio.msg import Msg
from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

Receive = Callable[[Msg], object]
"""Takes a message at once; what it raises is reported like other errors of the connection."""

HEADER_LINE: Final = "NATS/1.0\r\n"
_HEADER_START: Final = HEADER_LINE.encode()
_MESSAGES: Final = (b"MSG ", b"HMSG ")
_LINE_END: Final = b"\r\n"
_WORDS: Final = {b"MSG": 4, b"HMSG": 5}
"""Words of the line of a message without a reply subject."""


class DirectParser(Parser):
    """The parser of one connection."""

    def __init__(self, client: Any, receivers: Mapping[int, Receive]) -> None:
        """`receivers` are those of the direct subscriptions, by id."""
        super().__init__(client)
        self._receivers = receivers
        self._reports: set[asyncio.Task[None]] = set()

    async def parse(self, data: bytes = b"") -> None:
        """Parse what was read, and hand its messages out in order."""
        if rest := self.hand_out(data):
            await super().parse(rest)

    def hand_out(self, data: bytes) -> bytes:
        """Hand out the messages with which these bytes begin; returns the rest, which the library has to read."""
        if self.buf or self.state != AWAITING_CONTROL_LINE:
            return data
        place = 0
        while end := self._hand_out(data, place):
            place = end
        return data[place:]

    def read_directly(self, reader: asyncio.StreamReader) -> None:
        """Hand messages out as soon as the socket is read; what the library has to read goes to its reader."""
        feed = reader.feed_data

        def feed_data(data: bytes) -> None:
            is_next = self.nc.is_connected and not reader._buffer  # type: ignore[attr-defined]  # noqa: SLF001
            if rest := self.hand_out(data) if is_next else data:
                feed(rest)

        reader.feed_data = feed_data  # type: ignore[method-assign, assignment]

    def _report(self, error: Exception) -> None:
        report = asyncio.ensure_future(self.nc._error_cb(error))  # noqa: SLF001 - the library has no public name for it
        self._reports.add(report)
        report.add_done_callback(self._reports.discard)

    def _hand_out(self, data: bytes, start: int) -> int:
        """Hand out the message that begins here; returns its end, or 0 if the library has to read it."""
        if not data.startswith(_MESSAGES, start):
            return 0
        words = data[start : (line_end := data.find(_LINE_END, start))].split()
        try:
            receive, size = self._receivers.get(int(words[2])), int(words[-1])
            header_size = int(words[-2]) if words[0] == b"HMSG" else 0
        except (ValueError, IndexError):
            return 0
        first = line_end + len(_LINE_END)
        end = first + size + len(_LINE_END)
        if line_end < 0 or receive is None or len(data) < end:
            return 0
        headers = None
        if header_size and (headers := read_headers(data[first : first + header_size])) is None:
            return 0
        reply = words[3].decode() if len(words) > _WORDS[words[0]] else ""
        body = data[first + header_size : first + size]
        try:
            receive(Msg(_client=self.nc, subject=words[1].decode(), reply=reply, data=body, headers=headers))
        except Exception as error:  # noqa: BLE001 - any would end the loop that reads the socket
            self._report(error)
        return end


def read_headers(headers: bytes) -> dict[str, str] | None:
    """Parse the headers of a message; None for those of the server, which begin with a status."""
    if not headers.startswith(_HEADER_START):
        return None
    pairs = [line.partition(": ") for line in headers[len(_HEADER_START) : -4].decode(errors="replace").split("\r\n")]
    return {name: value for name, _, value in pairs}
