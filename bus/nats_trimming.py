"""The beginning of a log: where it is, whether it was trimmed, and trimming it.

Before events are removed, the sequence of the first that stays is written into the run's bucket. So a log that begins later than
at 1 is either marked as trimmed, or damaged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from bus.base import Envelope, LogSpan
from bus.claims import remove_bodies
from bus.delivery import trimmed
from bus.errors import CorruptMessage, EventsTrimmed, LogDamaged, LogUnavailable
from bus.nats_journal import Journal
from bus.nats_reader import LogReader, unpack

_MARK: Final = "_log.first"
_READ_TOGETHER: Final = 256


async def span_of(journal: Journal) -> LogSpan:
    """Where the log begins and ends.

    Raises:
        CorruptMessage: it begins later than it was trimmed to.
    """
    state = (await journal.api(f"STREAM.INFO.{journal.log}", {}))["state"]
    first, last = max(int(state["first_seq"]), 1), int(state["last_seq"])
    if first > 1 and first > await marked_first(journal):
        raise CorruptMessage(
            f"the log of {journal.log} begins at event {first}, and earlier events were not trimmed: the server's store is damaged; "
            "go on from a copy of the run folder's nats folder, or start another run from the last checkpoint"
        )
    return LogSpan(first=first, last=last, bytes=int(state["bytes"]))


async def marked_first(journal: Journal) -> int:
    """Sequence of the first event that no trimming has removed; 1 if nothing was trimmed."""
    kept = await journal.get(_MARK)
    return int(kept) if kept else 1


async def check_beginning(journal: Journal, run: str, reader: str, after: int) -> None:
    """Refuse to read a fold's events from a place that was trimmed.

    Raises:
        EventsTrimmed: the log begins later than the event after `after`.
    """
    if (first := (await span_of(journal)).first) > after + 1:
        raise EventsTrimmed(trimmed(reader, after + 1, first, run))


async def gap_error(journal: Journal, run: str, missing: int, found: int) -> LogUnavailable | CorruptMessage:
    """Why the log has no event `missing` before its event `found`: it was trimmed while it was read, or its store is damaged."""
    if missing < (first := await marked_first(journal)):
        return EventsTrimmed(trimmed("a reader", missing, first, run))
    return CorruptMessage(f"events {missing} to {found - 1} of run {run} are missing in the server's store, which is damaged")


async def read_log(journal: Journal, *, after: int, follow: bool) -> AsyncGenerator[Envelope, None]:
    """Every event of the log after this one, and with `follow` go on for ever.

    Raises:
        EventsTrimmed: the events that were to be read next were trimmed meanwhile.
        LogDamaged: events are missing for no such reason.
    """
    reader = LogReader(journal, [journal.prefix + ">"], "log")
    try:
        end = await reader.open("all", after)
        while follow or after < end:
            after += 1
            yield await (reader.next_wanted(after) if after <= end else reader.next_following(after))
    except LogDamaged as error:
        if after < (first := await marked_first(journal)):
            raise EventsTrimmed(trimmed("a reader", after, first, journal.run)) from error
        raise
    finally:
        await reader.close()


async def trim(journal: Journal, first: int, blobs: Path | None) -> None:
    """Remove all events before `first` but never the newest, with the files that hold their bodies.

    An interrupted trimming is completed by the next.
    """
    there = await span_of(journal)
    first = min(first, there.last)
    if first <= there.first:
        return
    await journal.put(_MARK, b"%d" % max(first, await marked_first(journal)))
    if blobs is not None and await asyncio.to_thread(_has_files, blobs):
        for start in range(there.first, first, _READ_TOGETHER):
            await _remove_bodies(journal, range(start, min(start + _READ_TOGETHER, first)), blobs)
    await journal.api(f"STREAM.PURGE.{journal.log}", {"seq": first})


async def _remove_bodies(journal: Journal, sequences: range, blobs: Path) -> None:
    messages = await journal.read(list(sequences))
    claims = [
        envelope.claim
        for sequence, message in zip(sequences, messages, strict=True)
        if (envelope := unpack(message.data, where=f"sequence {sequence} of the log")).claim
    ]
    await asyncio.to_thread(remove_bodies, claims, blobs)


def _has_files(blobs: Path) -> bool:
    return blobs.is_dir() and any(blobs.iterdir())
