"""How far a durable consumer has come, kept in the run's bucket."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import structlog

from bus.errors import LogUnavailable
from bus.nats_journal import Journal
from bus.subjects import position_key

_WRITE_EVERY_SECONDS: Final = 0.02
"""What a crash can set a consumer back by; it hears those events again and says nothing new."""
_CLOSE_SECONDS: Final = 2.0

_logger = structlog.get_logger(__name__)


async def stored_position(journal: Journal, consumer: str) -> int:
    """Sequence of the last event that it has acknowledged; 0 when there was none."""
    kept = await journal.get(position_key(consumer))
    return int(kept) if kept else 0


class PositionKeeper:
    """Writes the newest position, not every one."""

    def __init__(self, journal: Journal, consumer: str) -> None:
        self._journal = journal
        self._consumer = consumer
        self._newest = 0
        self._written = 0
        self._writer: asyncio.Task[None] | None = None

    async def open(self) -> int:
        """Sequence of the last event that was acknowledged in an earlier life; 0 when there was none."""
        self._newest = self._written = await stored_position(self._journal, self._consumer)
        return self._written

    def move(self, sequence: int) -> None:
        """The position is now here; it is written soon."""
        self._newest = sequence
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while self._written != self._newest:
            newest = self._newest
            try:
                await self._journal.put(position_key(self._consumer), b"%d" % newest)
            except LogUnavailable as error:
                _logger.warning(
                    "a consumer's position is not kept; it will hear events again", key=position_key(self._consumer), error=str(error)
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


def _key(consumer: str) -> str:
    return f"_position.{consumer}"
