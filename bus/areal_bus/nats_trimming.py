"""Trimming of the log at its beginning, and checks of where it begins.

Before events are removed, the sequence of the first remaining one is written to the run's bucket. So a log that begins
after 1 is either marked as trimmed, or damaged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from areal_bus.base import Envelope, LogSpan
from areal_bus.claims import remove_bodies
from areal_bus.delivery import trimmed_error
from areal_bus.errors import CorruptMessage, EventsTrimmed, LogDamaged, LogUnavailable
from areal_bus.nats_reader import NatsLogReader
from areal_bus.nats_shared import SharedLog, SharedLogReader
from areal_bus.nats_streams import Streams
from areal_bus.payload import unpack

_MARK: Final = "_log.first"
_READ_TOGETHER: Final = 256


async def span_of(streams: Streams) -> LogSpan:
    """Returns the range of the log.

    Raises:
        CorruptMessage: the log begins after its trim point.
    """
    state = (await streams.api(f"STREAM.INFO.{streams.log}", {}))["state"]
    first, last = max(int(state["first_seq"]), 1), int(state["last_seq"])
    if first > 1 and first > await marked_first(streams):
        raise CorruptMessage(
            f"the log {streams.log} begins at event {first}, but earlier events were not trimmed: the server's store is"
            " damaged; restore the run folder's nats folder from a backup, or start another run from the last"
            " checkpoint"
        )
    return LogSpan(first=first, last=last, bytes=int(state["bytes"]))


async def marked_first(streams: Streams) -> int:
    """Returns the sequence of the first event that was not trimmed; 1 if the log was never trimmed."""
    kept = await streams.get(_MARK)
    return int(kept) if kept else 1


async def check_beginning(streams: Streams, run: str, reader: str, after: int) -> None:
    """Raise if the events that a fold starts from were trimmed.

    Raises:
        EventsTrimmed: the log begins later than the event after `after`.
    """
    if (first := (await span_of(streams)).first) > after + 1:
        raise EventsTrimmed(trimmed_error(reader, after + 1, first, run))


async def gap_error(streams: Streams, run: str, missing: int, sequence: int) -> LogUnavailable | CorruptMessage:
    """Returns the error for a log without events `missing` to `found` - 1.

    They were trimmed during the read, or the store is damaged.
    """
    if missing < (first := await marked_first(streams)):
        return EventsTrimmed(trimmed_error("a reader", missing, first, run))
    return CorruptMessage(
        f"events {missing} to {sequence - 1} of run {run} are missing in the server's store, which is damaged"
    )


async def read_log(
    streams: Streams, *, after: int, follow: bool, shared: SharedLog | None = None
) -> AsyncGenerator[Envelope, None]:
    """Yield every event of the log after this sequence; with `follow`, never end, and read new ones with `shared`.

    Raises:
        EventsTrimmed: the next events were trimmed meanwhile.
        LogDamaged: events are missing that were not trimmed.
    """
    everything = [streams.prefix + ">"]
    reader = (
        SharedLogReader(shared, everything, "log") if shared and follow else NatsLogReader(streams, everything, "log")
    )
    try:
        end = await reader.open("all", after)
        while follow or after < end:
            after += 1
            yield await (reader.next_wanted(after) if after <= end else reader.next_following(after))
    except LogDamaged as error:
        if after < (first := await marked_first(streams)):
            raise EventsTrimmed(trimmed_error("a reader", after, first, streams.run)) from error
        raise
    finally:
        await reader.close()


async def trim(streams: Streams, first: int, blobs: Path | None) -> None:
    """Remove all events before `first` but never the newest, with the files of their bodies.

    An interrupted trim is completed by the next one.
    """
    span = await span_of(streams)
    first = min(first, span.last)
    if first <= span.first:
        return
    await streams.put(_MARK, b"%d" % max(first, await marked_first(streams)))
    if blobs is not None and await asyncio.to_thread(_has_files, blobs):
        for start in range(span.first, first, _READ_TOGETHER):
            await _remove_bodies(streams, range(start, min(start + _READ_TOGETHER, first)), blobs)
    await streams.api(f"STREAM.PURGE.{streams.log}", {"seq": first})


async def _remove_bodies(streams: Streams, sequences: range, blobs: Path) -> None:
    messages = await streams.read(list(sequences))
    claims = [
        envelope.claim
        for sequence, message in zip(sequences, messages, strict=True)
        if (envelope := unpack(message.data, where=f"sequence {sequence} of the log")).claim
    ]
    await asyncio.to_thread(remove_bodies, claims, blobs)


def _has_files(blobs: Path) -> bool:
    return blobs.is_dir() and any(blobs.iterdir())
