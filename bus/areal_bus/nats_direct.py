"""Reads the log by sequence with direct gets: without a consumer, which monitors may not create.

Each batch is requested by the sequence after the last event received; after any failure the same request is repeated.
(nats-py's `get_msg` reads one message for each request.)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import msgspec
from nats.aio.msg import Msg

from areal_bus.base import Envelope, LogSpan
from areal_bus.claims import check_out
from areal_bus.errors import LogUnavailable, ServerUnavailable
from areal_bus.nats_client import status
from areal_bus.nats_streams import Json, Streams
from areal_bus.payload import unpack
from areal_bus.retry_time import RetryTime

_BATCH: Final = 64
_BATCH_BYTES: Final = 4 << 20
_REPLY_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.25
"""Seconds between two requests at the end of the log."""
_NOT_FOUND: Final = "404"
_END_OF_BATCH: Final = "204"


async def read_directly(
    streams: Streams, *, after: int, follow: bool, retry_for_seconds: float
) -> AsyncGenerator[Envelope, None]:
    """Yield the log's events after this sequence, in order; with `follow`, never end.

    Raises:
        CorruptMessage: an event is damaged.
        LogUnavailable: the server has not sent the next events within `retry_for_seconds` seconds.
        ServerUnavailable: the connection is lost permanently.
        PermissionDenied: this user may not read the log.
    """
    while True:
        messages = await _batch(streams, after, retry_for_seconds)
        for message in messages:
            sequence = _sequence_of(message)
            envelope = unpack(message.data, where=f"sequence {sequence} of the log", sequence=sequence)
            after = sequence
            yield check_out(envelope, streams.blobs)
        if not messages:
            if not follow:
                return
            await asyncio.sleep(_POLL_SECONDS)


async def span_directly(streams: Streams) -> LogSpan:
    """Returns the range of the log for a user without permission for stream info; its size is unknown.

    Raises:
        LogUnavailable: the server does not answer.
    """
    first, last = await streams.next_from(streams.log, 1), await streams.newest(streams.log)
    return LogSpan(first=_sequence_of(first) if first else 1, last=_sequence_of(last) if last else 0, bytes=0)


def _sequence_of(message: Msg) -> int:
    return int((message.headers or {})["Nats-Sequence"])


async def _batch(streams: Streams, after: int, retry_for_seconds: float) -> list[Msg]:
    """Returns the next events; none at the end of the log."""
    request = {"seq": after + 1, "batch": _BATCH, "max_bytes": _BATCH_BYTES}
    time = RetryTime(retry_for_seconds, _REPLY_SECONDS)
    while True:
        try:
            messages, end = await _request(streams, request)
        except (TimeoutError, ServerUnavailable) as error:
            if streams.connection.lost:
                raise ServerUnavailable(streams.connection.lost) from error
            messages, end = [], str(error) or "no reply"
        if messages or end == _NOT_FOUND:
            return messages
        if time.is_over():
            raise LogUnavailable(
                f"{streams.log}: events after {after} were not received within {retry_for_seconds:g} s: {end}"
            )
        await asyncio.sleep(_POLL_SECONDS)


async def _request(streams: Streams, request: Json) -> tuple[list[Msg], str]:
    """Returns the messages of a batch, and the status that ended it."""
    messages: list[Msg] = []
    with streams.connection.inbox(notify_reconnect=True) as inbox:
        await streams.connection.publish(
            f"$JS.API.DIRECT.GET.{streams.log}", msgspec.json.encode(request), reply=inbox.address
        )
        while True:
            try:
                message = await inbox.next(_REPLY_SECONDS)
            except (TimeoutError, ServerUnavailable):
                if messages:
                    return messages, _END_OF_BATCH  # the rest is requested again
                raise
            if code := status(message):
                return messages, code
            messages.append(message)
