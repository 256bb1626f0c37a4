"""Positions of durable consumers, stored in the run's bucket."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import structlog

from areal_bus.errors import LogUnavailable
from areal_bus.nats_streams import Streams
from areal_bus.subjects import position_key

_WRITE_EVERY_SECONDS: Final = 0.1
"""Longest stretch of acknowledgements, in seconds, that a crash can lose; their events are redelivered and the results
deduplicated."""
_CLOSE_SECONDS: Final = 2.0

_logger = structlog.get_logger(__name__)


async def stored_position(streams: Streams, consumer: str) -> int:
    """Returns the sequence of the last event that a consumer has acknowledged; 0 if there is none."""
    kept = await streams.get(position_key(consumer))
    return int(kept) if kept else 0


class PositionWriter:
    """Writes the position of a consumer at intervals, skipping intermediate ones.

    One that is not `kept` is never written: its consumer needs none, since it does not receive all past events again.
    """

    def __init__(self, streams: Streams, consumer: str, *, kept: bool = True) -> None:
        self._streams = streams
        self._consumer = consumer
        self._kept = kept
        self._newest = 0
        self._written = 0
        self._writer: asyncio.Task[None] | None = None

    async def open(self) -> int:
        """Returns the stored position; 0 if there is none."""
        if not self._kept:
            return 0
        self._newest = self._written = await stored_position(self._streams, self._consumer)
        return self._written

    def move(self, sequence: int) -> None:
        """Set the position; it is written soon."""
        if not self._kept:
            return
        self._newest = sequence
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while self._written != self._newest:
            newest = self._newest
            try:
                await self._streams.put(position_key(self._consumer), b"%d" % newest)
            except LogUnavailable as error:
                _logger.warning(
                    "a consumer's position was not written; events will be redelivered to it",
                    key=position_key(self._consumer),
                    error=str(error),
                )
                return
            self._written = newest
            await asyncio.sleep(_WRITE_EVERY_SECONDS)

    async def close(self) -> None:
        """Write the last position."""
        if self._writer is not None and not self._writer.done():
            self._writer.cancel()
            with suppress(asyncio.CancelledError):
                await self._writer
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._write()
