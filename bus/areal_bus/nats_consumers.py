"""Consumers of a run's log: each with its position and a reader, which those of one process may share."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from areal_bus.base import Envelope, History, Subscription
from areal_bus.delivery import Deliveries, Position, by_subject, open_event
from areal_bus.message import Event
from areal_bus.nats_position import PositionWriter
from areal_bus.nats_reader import NatsLogReader
from areal_bus.nats_shared import SharedLog, SharedLogReader
from areal_bus.nats_streams import Streams
from areal_bus.nats_trimming import check_beginning, read_log
from areal_bus.subjects import check_token


class LogConsumers:
    """Subscribes to events over one connection.

    With `shared`, consumers that receive all events, and those who follow the log, share a reader.
    """

    def __init__(self, streams: Streams, *, shared: bool) -> None:
        self._streams = streams
        self._shared = SharedLog(streams) if shared else None

    @asynccontextmanager
    async def events(
        self, *kinds: type[Event], consumer: str, history: History, after: int
    ) -> AsyncIterator[Subscription]:
        """Subscribe to events in log order as the consumer of this name."""
        opened = by_subject(*kinds)
        positions = PositionWriter(self._streams, check_token("consumer", consumer), kept=history == "all")
        reader = self._reader([self._streams.prefix + subject for subject in opened], consumer, history)
        try:
            acknowledged = await positions.open()
            end = await reader.open(history, after)
            if history == "all":
                await check_beginning(self._streams, self._streams.run, consumer, after)
            position = Position(max(min(acknowledged, end), after), positions.move)
            yield Deliveries(
                reader.next, lambda envelope: open_event(envelope, opened, position), backlog=reader.backlog
            )
        finally:
            await reader.close()
            await positions.close()

    def log(self, *, after: int, follow: bool) -> AsyncGenerator[Envelope, None]:
        """Yield every event after this sequence; see `read_log`."""
        return read_log(self._streams, after=after, follow=follow, shared=self._shared)

    def _reader(self, subjects: list[str], consumer: str, history: History) -> NatsLogReader | SharedLogReader:
        if self._shared is None or history != "all":
            return NatsLogReader(self._streams, subjects, consumer)
        return SharedLogReader(self._shared, subjects, consumer)
