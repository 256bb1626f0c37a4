"""One reader of the log for several consumers of a process: each event is sent to it, received and unpacked once.

A consumer first reads what the log holds with a reader of its own; later events come from the shared one. A consumer
that falls behind reads with one of its own again, so that it neither delays the others nor fills the memory.
"""

from __future__ import annotations

import asyncio
from typing import Final

from areal_bus.base import Envelope, History
from areal_bus.nats_reader import NatsLogReader, missing_error
from areal_bus.nats_streams import Streams

_ALL: Final = ">"
"""Subject of a consumer that reads every event."""
_WAITING: Final = 256
"""Events that may wait for a consumer; with more it has fallen behind."""


class SharedLog:
    """Passes new events to the consumers that read their subjects."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self._consumers: dict[SharedLogReader, frozenset[str]] = {}
        """Consumers, with their subjects as in envelopes."""
        self._subjects: list[str] = []
        self._reader: NatsLogReader | None = None
        self._passing: asyncio.Task[None] | None = None
        self._passed = 0
        """Sequence of the last event that was passed on, or after which passing on began."""
        self._changing = asyncio.Lock()

    async def join(self, consumer: SharedLogReader, subjects: list[str]) -> None:
        """Pass on events on these subjects to a consumer.

        It gets all that are written after this returns, and perhaps some before.

        Raises:
            LogUnavailable: the run has no log.
        """
        async with self._changing:
            self._consumers[consumer] = frozenset(subject.removeprefix(self.streams.prefix) for subject in subjects)
            everything = self.streams.prefix + _ALL
            is_read = everything in self._subjects or set(subjects) <= set(self._subjects)
            if not is_read or self._passing is None or self._passing.done():
                merged = list(dict.fromkeys([*self._subjects, *subjects]))
                self._subjects = [everything] if everything in merged else merged
                await self._read_anew()

    async def leave(self, consumer: SharedLogReader) -> None:
        """Pass on no more; the last consumer ends the reading."""
        async with self._changing:
            self._consumers.pop(consumer, None)
            if not self._consumers:
                await self._stop()
                self._subjects.clear()

    async def _read_anew(self) -> None:
        """Continue with a reader of all subjects."""
        continues = self._reader is not None
        await self._stop()
        reader = NatsLogReader(self.streams, self._subjects, "shared")
        try:
            end = await reader.open("all" if continues else "new", self._passed)
        except BaseException:
            await reader.close()
            raise
        self._reader, self._passed = reader, self._passed if continues else end
        self._passing = asyncio.create_task(self._pass_on(reader))

    async def _stop(self) -> None:
        reader, self._reader = self._reader, None
        if self._passing is not None:
            self._passing.cancel()
            await asyncio.wait(
                {self._passing}
            )  # unlike a plain await, it does not mix up the task's cancellation with that of this one
        if reader is not None:
            await reader.close()

    async def _pass_on(self, reader: NatsLogReader) -> None:
        while True:
            try:
                event = await reader.next()
            except Exception as error:  # noqa: BLE001 - each consumer raises it
                for consumer in self._consumers:
                    consumer.put(error)
                return
            self._passed = event.sequence
            for consumer, subjects in self._consumers.items():
                if event.subject in subjects or _ALL in subjects:
                    consumer.put(event)


class SharedLogReader:
    """Reads the log's events of some subjects, in order, each once.

    A reader of its own brings past ones, the shared one new ones.
    """

    def __init__(self, log: SharedLog, subjects: list[str], name: str) -> None:
        self._log = log
        self._subjects = subjects
        self._name = name
        self.backlog = 0
        """Number of events to read that were in the log when the reader was opened."""
        self._after = 0
        self._own: NatsLogReader | None = None
        self._left = 0
        """Number of events to read with the reader of its own."""
        self._waiting: asyncio.Queue[Envelope | Exception] = asyncio.Queue()
        self._is_behind = False

    async def open(self, _: History, after: int = 0) -> int:
        """Start reading all events after `after`, of which none is missed from then on.

        Returns the log's last sequence.
        """
        self._after = after
        end = await self._begin()
        self.backlog = self._left
        return end

    async def _begin(self) -> int:
        self._is_behind = False
        await self._log.join(self, self._subjects)
        self._own = NatsLogReader(self._log.streams, self._subjects, self._name)
        end = await self._own.open("all", self._after)
        self._left = self._own.backlog
        return end

    def put(self, item: Envelope | Exception) -> None:
        """Take a new event, unless too many wait; or the error that ends the reading."""
        if self._is_behind:
            return
        self._is_behind = self._waiting.qsize() >= _WAITING and not isinstance(item, Exception)
        if not self._is_behind:
            self._waiting.put_nowait(item)

    async def next(self) -> Envelope:
        """Wait for the next event, with its body.

        Raises:
            As `NatsLogReader.next`.
        """
        while True:
            if self._own is not None and self._left:
                envelope = await self._next_past(self._own)
                self._left -= 1
                self._after = envelope.sequence
                return envelope
            await self._close_own()
            if self._is_behind and self._waiting.empty():
                await self._begin()
                continue
            item = await self._waiting.get()
            if isinstance(item, Exception):
                self._waiting.put_nowait(item)
                raise item
            if item.sequence > self._after:
                self._after = item.sequence
                return item

    async def _next_past(self, own: NatsLogReader) -> Envelope:
        """Returns the next event that was in the log; where all are read, its sequence is known."""
        is_whole = self._subjects == [self._log.streams.prefix + _ALL]
        return await (own.next_wanted(self._after + 1) if is_whole else own.next())

    async def next_wanted(self, wanted: int) -> Envelope:  # noqa: ARG002 - of the interface of a reader
        """Wait for the next event; raises like `next`."""
        return await self.next()

    async def next_following(self, wanted: int) -> Envelope:
        """Wait for the event `wanted`, which may not exist yet.

        Raises:
            As `next`; `LogDamaged` if a later one arrives instead.
        """
        envelope = await self.next()
        if envelope.sequence != wanted:
            raise missing_error(self._log.streams, wanted)
        return envelope

    async def _close_own(self) -> None:
        if self._own is not None:
            own, self._own = self._own, None
            await own.close()

    async def close(self) -> None:
        """Stop reading."""
        await self._close_own()
        await self._log.leave(self)
